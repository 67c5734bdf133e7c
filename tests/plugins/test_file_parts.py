"""Named parts of files: what safetensors and ELF files hold where, and nothing from a file that lies."""

import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wstrace.interfaces import MappedFile, Part
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.parts import file_parts
from wstrace_plugins.symbols.resolver import ImageResolver


def safetensors(tensors: dict[str, int], **wrong: object) -> bytes:
    header = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({**header, **wrong}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


LAYERS = {"embed": 128, "blk.0.ffn": 64, "blk.1.ffn": 192}


def parts(path: Path, content: bytes) -> list[Part]:
    path.write_bytes(content)
    with ImageFile(str(path)) as file:
        return file_parts(file)


def sizes(found: list[Part]) -> dict[str, int]:
    return {part.name: part.end - part.start for part in found if part.name != "(header)"}


def test_tensors_have_their_bytes(tmp_path):
    content = safetensors(LAYERS)
    found = parts(tmp_path / "x", content)
    assert sizes(found) == LAYERS
    assert found[0].start == 0
    assert found[-1].end == len(content)
    assert [one.end for one in found[:-1]] == [one.start for one in found[1:]]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf (tests/install-peers)")
def test_sections_of_a_program_are_where_its_headers_say():
    program = str(Path(sys.executable).resolve())
    listed = subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^ *\[ *\d+\] (\S+) +(\S+) +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", listed, re.M)
    expected = {(name, int(at, 16), int(at, 16) + int(size, 16)) for name, kind, at, size in rows
                if int(size, 16) and kind != "NOBITS"}  # fmt: skip
    assert set(ImageResolver().parts(MappedFile(program))) == expected
    assert ".text" in {name for name, *_ in expected}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain text",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 60_000) + b"{" * 60_000,
        safetensors({"a": 4}, b={"data_offsets": [0, 5]}),
        safetensors({"a": 4}, b={"data_offsets": [4, 0]}),
        safetensors({"a": 4}, b={"data_offsets": [-8, 0]}),
        safetensors({"a": 4}, b={"data_offsets": [True, 2]}),
        safetensors({"a": 4}, b={"data_offsets": [0.5, 2]}),
        safetensors({"a": 4}, b=7),
        b"\x7fELF" + bytes(100),
    ],
    ids=range(12),
)
def test_a_file_that_lies_has_no_parts(content, tmp_path):
    assert parts(tmp_path / "x", content) == []


@pytest.mark.parametrize("empty", ["{}", "[]", '""'])
def test_a_safetensors_header_of_millions_of_empty_values_is_not_parsed(empty, tmp_path, monkeypatch):
    monkeypatch.setattr("json.loads", lambda _: pytest.fail("it takes seconds"))
    header = ("{" + ",".join(f'"{n}":{empty}' for n in range(600_000)) + "}").encode()
    assert parts(tmp_path / "x", struct.pack("<Q", len(header)) + header + bytes(64)) == []


def test_tens_of_thousands_of_tensors_are_parts(tmp_path):
    assert len(sizes(parts(tmp_path / "x", safetensors({f"layer.{n}": 1 for n in range(60_000)})))) == 60_000


def test_a_pipe_and_a_missing_file_have_no_parts(tmp_path):
    import os

    resolver = ImageResolver()
    assert resolver.parts(MappedFile(str(tmp_path / "none"))) == ()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert resolver.parts(MappedFile(str(tmp_path / "pipe"))) == ()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=8)), max_size=4),
       cut=st.integers(0, 900))  # fmt: skip
def test_parts_of_a_changed_file_are_within_it(tmp_path, changes, cut):
    content = bytearray(safetensors(LAYERS))
    for at, bytes_ in changes:
        content[at : at + len(bytes_)] = bytes_
    del content[cut + 8 :]
    for part in parts(tmp_path / "x", bytes(content)):
        assert 0 <= part.start <= part.end <= len(content)
