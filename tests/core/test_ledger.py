"""The ledger: which rows mean loss, and the words for them, those of plugins too."""

import sys

import pytest
from kit.command_line import wstrace

from wstrace.ledger import STAGES, Ledger

LEAKY = """
from wstrace import Source, hookimpl

class Leaky(Source):
    name, streams = "leaky", ()

    def start(self, context):
        self.context = context

    def drain(self, timeout):
        return []

    def stop(self):
        self.context.ledger.add("spilt", 5, self.name)
        self.context.ledger.add("seen_twice", 2, self.name)
        return []

    finished = True

@hookimpl
def wstrace_sources():
    return [Leaky]

@hookimpl
def wstrace_stages():
    return {"spilt": (True, "drops that ran past the cup"), "seen_twice": (False, "drops that were counted twice")}
"""


def test_faults_without_a_stack_are_no_loss_in_a_file_that_is_read_without_the_plugin_that_counted_them():
    ledger = Ledger.from_dict({"without_stack:no Python frame": 3, "stacks_lost:no row": 2, "lost_kernel:x": 1})
    assert [stage for stage, _, _ in ledger.losses()] == ["lost_kernel"]


def test_a_stage_is_loss_unless_someone_says_otherwise():
    ledger = Ledger({"noticed": (False, "a note"), "spilt": (True, "drops"), "recorded": (True, "not the core's word")})
    for stage in ("unheard_of", "spilt", "noticed", "recorded", "lost_kernel"):
        ledger.add(stage, 3, "x")
    assert [row[0] for row in ledger.rows()] == ["recorded", "lost_kernel", "noticed", "spilt", "unheard_of"]
    assert [row[0] for row in ledger.losses()] == ["lost_kernel", "spilt", "unheard_of"]
    assert [ledger.words(stage) for stage in ("noticed", "unheard_of")] == ["a note", "unheard_of"]
    assert ledger.words("recorded") == STAGES["recorded"][1], "no plugin redefines the core's"


def traced(folder, *words, source=LEAKY):
    """`run` of a trace of the plugin's."""
    (folder / "leaky.py").write_text(source)
    about = folder / "leaky-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[wstrace]\nleaky = leaky\n")
    command = ["--", sys.executable, "-c", "pass"]
    return wstrace("run", "-s", "leaky", *words, *command, environment={"PYTHONPATH": str(folder)})


@pytest.mark.slow
def test_a_file_that_lacks_records_is_123_and_any_other_loss_121_where_that_is_requested(tmp_path):
    dropping = LEAKY.replace('"spilt"', '"dropped_bus"')
    assert dropping != LEAKY
    file = tmp_path / "x.wst"
    for words, code in (((), 0), (("--fail-on-loss",), 121), (("-f", "-o", file), 123),
                        (("-f", "-o", file, "--fail-on-loss"), 123)):  # fmt: skip
        done = traced(tmp_path, *map(str, words), source=dropping)
        assert done.returncode == code, (words, done.stderr)
    assert f"{file} lacks 5 records: " in done.stderr.splitlines()[-1]
    for words, code in (((), 0), (("-f", "-o", file), 0), (("-f", "-o", file, "--fail-on-loss"), 121)):
        assert traced(tmp_path, *map(str, words)).returncode == code, words


def test_the_words_of_a_plugin_s_stages_are_printed(tmp_path):
    done = traced(tmp_path, "--fail-on-loss")
    assert done.returncode == 121, done.stderr
    assert "lost            5  drops that ran past the cup (leaky)\n" in done.stderr
    assert "note            2  drops that were counted twice (leaky)\n" in done.stderr
    assert "5 leaky (drops that ran past the cup)" in done.stderr.splitlines()[-1]
    assert "spilt" not in done.stderr
