"""The strips of mappings in Chromium: a cell names its first page, whatever size the traced machine's pages have."""

import re

import pytest
from kit import chromium
from kit.blame_scripted import ANON, APP, Script

from wstrace.schema import PAGE_EXCLUSIVE
from wstrace_exporters.html.pictures.strips import CELLS


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_a_cell_names_its_first_page(page, tmp_path):
    chromium.require()
    script = Script()
    for number in range(40):
        script.fault(100 + number, ANON + number * page, APP)
    script.snapshot(1000, (ANON, 40, PAGE_EXCLUSIVE))
    trace = script.trace()
    trace.info.page_size = page
    path = tmp_path / "r.html"
    trace.save(str(path))
    pages = (1 << 30) // page  # of the mapping
    with chromium.Chromium(tmp_path / "profile") as browser:
        browser.open(f"file://{path}", "document.documentElement?.dataset.ready === 'yes'")
        browser.value("document.querySelector('#strips .strip canvas').focus()")
        for cell in range(1, 8):
            browser.press("ArrowRight")
            said = browser.value("document.querySelector('#strips .said').textContent")
            (address,) = re.findall(r"0x([0-9a-f]+)", said)
            assert int(address, 16) == ANON + -(-cell * pages // CELLS) * page, (cell, said)
