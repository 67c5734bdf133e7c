"""Attaching by control group while cgroups that were chosen are removed."""

import subprocess

import pytest

from wstrace.errors import TargetExited
from wstrace.session import Session
from wstrace_plugins.os.linux.backend import platform

pytestmark = pytest.mark.usefixtures("full_level")


def test_a_cgroup_that_is_removed_before_its_events_are_opened_is_left_out(cgroup):
    """One of two, and then the only one, in which case there is nothing to trace."""
    for name in ("one", "other"):
        cgroup.make(name)
    group = platform().group("cgroup", f"{cgroup.path}/*")
    cgroup.at("one").remove()
    session = Session(groups=[group], sources=["page_faults:stacks=none"]).start()
    subprocess.run([*cgroup.at("other").joining(), "true"], check=True)
    session.stop()
    assert {session.name(code) for code in session.faults["cgroup"].tolist()} == {f"{cgroup.path}/other"}
    assert f"the cgroup {cgroup.path}/one was removed during the trace" in session.info.notes
    alone = platform().group("cgroup", f"{cgroup.path}/oth*")
    cgroup.at("other").remove()
    with pytest.raises(TargetExited, match=f"the cgroup {cgroup.path}/other has been removed"):
        Session(groups=[alone], sources=["page_faults:stacks=none"]).start()
