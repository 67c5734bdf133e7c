"""The fuzzers' corpora, of traces and commands, are replayed always; --long looks for new inputs (atheris)."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import fuzz_commands
import fuzz_trace
import pytest

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").iterdir())


def test_the_corpus_has_every_kind_of_frame():
    names = {path.name for path in CORPUS}
    assert names >= {"whole", "cut", "no-header", "codecs", *(f"kind-{kind}" for kind in range(8))}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_every_input_of_the_corpus_is_read_or_refused(path):
    fuzz_trace.one(path.read_bytes())


def test_changed_inputs_of_the_corpus_are_read_or_refused():
    rng = random.Random(11)
    seeds = [path.read_bytes() for path in CORPUS]
    for _ in range(300):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) or 1)
            piece = rng.choice(seeds)
            begin = rng.randrange(len(piece) or 1)
            data[at : at + rng.choice((0, 1, 1, 8))] = rng.choice(
                (bytes([rng.randrange(256)]), piece[begin : begin + 30], b"\xff" * 4, b"")
            )
        fuzz_trace.one(bytes(data))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_ten_thousand_guided_inputs(tmp_path):
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    shutil.copytree(HERE / "corpus", tmp_path / "corpus")
    command = [sys.executable, str(HERE / "fuzz_trace.py"), str(tmp_path / "corpus"), "-max_total_time=120",
               "-runs=10000", f"-artifact_prefix={tmp_path}/"]  # fmt: skip
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]


@pytest.fixture(autouse=True)
def plain_streams(monkeypatch):
    monkeypatch.setattr("wstrace.cli._speak_utf8", lambda: None)


def test_sixty_odd_files_are_read_or_refused_by_every_command():
    wrong = [(words, why) for _, words, why in fuzz_commands.fuzz(1, files=60)]
    assert not wrong, wrong[:3]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_new_odd_files_for_two_minutes():
    wrong = [(words, why) for _, words, why in fuzz_commands.fuzz(random.randrange(1 << 30), seconds=120)]
    assert not wrong, wrong[:3]
