"""speedscope, from its npm bundle and in a browser, reads profiles for pprof and folded stacks."""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from kit import chromium
from kit.blame_scripted import ANON, APP, PAGE, SAVE, Script

VERSION, SHA256 = "1.25.0", "2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03"


@pytest.fixture(scope="module")
def page():
    """Its page, fetched once into the user's cache."""
    chromium.require()
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: bash tests/install-peers")
    cache = Path(os.environ.get("WSTRACE_CACHE") or Path.home() / ".cache" / "wstrace")
    folder = cache / f"speedscope-{VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "pack", f"speedscope@{VERSION}", "--pack-destination", str(cache)]
        done = subprocess.run(npm, capture_output=True, text=True, timeout=100, cwd=cache)
        if done.returncode:
            pytest.skip(f"npm cannot fetch speedscope here: {done.stderr.strip()[-200:]}")
        archive = cache / f"speedscope-{VERSION}.tgz"
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
        unfinished = cache / f"speedscope-{VERSION}.{os.getpid()}"
        with tarfile.open(archive) as packed:
            packed.extractall(unfinished, filter="data")
        unfinished.replace(folder)
    return folder / "package" / "dist" / "release" / "index.html"


def test_it_reads_profiles_and_folded_stacks(page, tmp_path):
    script = Script()
    for n in range(6):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 4 else SAVE)
    script.snapshot(100, (ANON, 6, 0))
    trace = script.trace()
    expected = {
        "x.pb.gz": ["16.00 KB (67%)", "load_frame", "8.00 KB (33%)", "save"],
        "x.folded": ["4 (67%)", "load_frame app.py:31", "2 (33%)", "save app.py:40"],
    }
    with chromium.Chromium(tmp_path / "profile") as browser:
        for name, texts in expected.items():
            trace.save(str(tmp_path / name))
            content = base64.b64encode((tmp_path / name).read_bytes()).decode()
            (tmp_path / f"{name}.js").write_text(f"speedscope.loadFileFromBase64({name!r}, {content!r})")
            browser.open("about:blank", "true")
            browser.open(f"file://{page}#localProfilePath={tmp_path / name}.js", f"document.title.startsWith({name!r})")
            browser.wait("document.body.innerText.includes('Sandwich')")
            browser.send("Input.dispatchKeyEvent", type="keyDown", key="3", text="3")
            browser.send("Input.dispatchKeyEvent", type="keyUp", key="3")
            browser.wait("document.body.innerText.includes('load_frame')")
            shown = browser.value("document.body.innerText")
            assert [text for text in texts if text not in shown] == []
