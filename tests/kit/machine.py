"""The tests that use up or change what a machine has once, and how pytest-xdist keeps them on one worker.

Its own groups do not: they are suffixes of node ids, which pytest 9.2 makes anew (`--dist loadgroup` of xdist 3.8 then
puts every test anywhere, without a word).
"""

from typing import Any

#: a file of tests, or one test of it
MACHINE = (
    "tests/live/test_as_nobody.py",  # kernel.perf_event_paranoid, and the memory that nobody may lock
    "tests/live/test_capture_attach.py::test_another_users_process",
    "tests/live/test_final_snapshot.py::test_without_privilege_it_works_where_the_kernel_allows_it",  # a setting
    "tests/live/test_native_stacks_beside_others.py",  # bpftrace and `perf -a` trace everything
    "tests/live/test_python_stacks.py::test_beside_another_tracer_begun_before_or_after_ours",
    "tests/live/test_swap.py",  # and the reserve of huge pages
)


def one_after_the_other(config: Any, log: Any) -> Any:
    """A scheduler of pytest-xdist: MACHINE is one piece of work, the first; each other test is one of its own."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "machine" if nodeid.startswith(MACHINE) else nodeid

    return Scheduling(config, log)
