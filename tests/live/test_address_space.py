"""A tracer whose address space is limited (RLIMIT_AS): it traces, or refuses at once and says what lifts the limit."""

import re
import resource
import subprocess
from collections.abc import Callable

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.usefixtures("full_level")
#: less than a trace needs, and yet enough for most of the runs that nothing refuses
TOO_LITTLE = 185_000


def limit(kib: int) -> Callable[[], None]:
    """What a child calls before its execve() for `ulimit -v kib`."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (kib << 10, kib << 10))


def least(said: str, what: str = "a trace") -> int:
    """The KiB that a refusal names, which is one line."""
    refused = rf"wstrace: this process may have 185,000 KiB of address space \(RLIMIT_AS\), too little for {what}; "
    found = re.fullmatch(refused + r"allow at least ([\d,]+) KiB: ulimit -v (\d+), or unlimited\n", said)
    assert found is not None, said
    assert found[1].replace(",", "") == found[2]
    return int(found[2])


def test_a_command_is_refused_before_it_runs_or_traced_to_its_end(tmp_path):
    words = ("run", "-o", tmp_path / "x.wst", "--", "sh", "-c", f"touch {tmp_path / 'ran'}; exit 7")
    refused = wstrace(*words, preexec_fn=limit(TOO_LITTLE))
    enough = least(refused.stderr)
    assert refused.returncode == 122
    assert list(tmp_path.iterdir()) == []
    traced = wstrace(*words, preexec_fn=limit(enough))
    assert traced.returncode == 7, traced.stderr
    assert " faults, 0 lost" in traced.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ran", "x.wst"]


def test_a_query_is_refused_or_answered_and_says_where_its_memory_ends(tmp_path):
    """DuckDB ends the process by SIGSEGV where the system gives it nothing."""
    pytest.importorskip("duckdb", reason="needs duckdb (pip install 'wstrace[sql]')")
    trace = tmp_path / "x.wst"
    assert wstrace("run", "-q", "-o", trace, "--", "true").returncode == 0
    words = ("query", trace, "select count(*) > 0 as some from faults", "--format", "csv")
    refused = wstrace(*words, preexec_fn=limit(TOO_LITTLE))
    enough = least(refused.stderr, "a query")
    assert refused.returncode == 122
    answered = wstrace(*words, preexec_fn=limit(enough))
    assert (answered.returncode, answered.stdout.split()) == (0, ["some", "True"]), answered.stderr
    large = "select list(range order by hash(range)) from range(10000000)"
    ended = wstrace("query", trace, large, preexec_fn=limit(enough))
    assert ended.returncode == 122
    assert re.fullmatch(r"wstrace: query: Out of Memory Error: .*; ask for less at once, .*\n", ended.stderr)


def test_attaching_is_refused_and_the_process_goes_on():
    target = subprocess.Popen(["sleep", "60"])
    try:
        refused = wstrace("attach", target.pid, "--duration", "1s", preexec_fn=limit(TOO_LITTLE))
        assert least(refused.stderr) > TOO_LITTLE
        assert refused.returncode == 122
        assert target.poll() is None
    finally:
        target.kill()
        target.wait()
