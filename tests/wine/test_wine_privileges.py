"""What wstrace may do is what its user may do: nothing but --debug-privilege changes the token of the process."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")

SCRIPT = r"""
import ctypes, os, struct, sys
import click, pytest
import wstrace
from wstrace import cli
from wstrace.session import Session

folder, pid, python = sys.argv[1], str(os.getpid()), sys.executable
advapi, token, size = ctypes.windll.advapi32, ctypes.c_void_p(), ctypes.c_uint32()
advapi.OpenProcessToken(ctypes.c_void_p(-1), 0x28, ctypes.byref(token))
advapi.AdjustTokenPrivileges(token, 1, None, 0, None, None)  # a parent that has a privilege on passes it on

def privileges():
    held = ctypes.create_string_buffer(4096)
    assert advapi.GetTokenInformation(token, 3, held, 4096, ctypes.byref(size))  # TokenPrivileges
    return held.raw[:size.value]

trace, test = os.path.join(folder, "x.wst"), os.path.join(folder, "test_it.py")
with open(test, "w") as file:
    file.write("import pytest\n@pytest.mark.wstrace(new='1GiB')\ndef test_it(): pass\n")
words = {
    "run": ["-o", trace, "--", python, "-c", "pass"], "attach": ["--duration", "1ms", pid], "report": [trace],
    "snapshot": [pid], "delta": ["--duration", "1ms", pid], "diff": [trace, trace], "empty": ["--yes", pid],
    "file": [test], "imports": ["json"], "ps": [], "top": ["--duration", "1ms", pid], "unshared": [pid],
    "wss": ["--duration", "1ms", pid], "convert": [trace, "-e", "csv:path=" + os.path.join(folder, "x")],
    "info": [trace], "doctor": [], "plugins": [],
}
names = sorted(cli.wstrace.list_commands(click.Context(cli.wstrace)), key="run".__ne__)
ways = {name: lambda name=name: cli.main([name, *words.get(name, ["--help"])]) for name in names}

def session():
    with Session(sources=["page_faults"], pid=os.getpid()):
        pass
def delta():
    with wstrace.delta():
        pass
ways |= {"Session": session, "wstrace.delta": delta, "WriteWatch": lambda: wstrace.WriteWatch(4096).written()}
ways["pytest"] = lambda: pytest.main(["-q", "-p", "wstrace", "--wstrace", "-p", "no:cacheprovider", test])
assert words.keys() <= ways.keys(), words.keys() - ways.keys()
done, before = {}, privileges()
assert len(before) > 4
for name, way in ways.items():
    try:
        done[name] = way()
    except SystemExit as end:
        done[name] = end.code
    if privileges() != before:
        sys.exit(f"changed by {name}")
if "psutil" in sys.modules:
    sys.exit("psutil is imported")
for words in (["attach", "--duration", "1ms"], ["snapshot"], ["empty", "--yes"]):
    advapi.AdjustTokenPrivileges(token, 1, None, 0, None, None)
    code = cli.main([*words, "--debug-privilege", pid])
    on = [held for held in struct.iter_unpack("<qI", privileges()[4:]) if held[1] & 2]
    if code or on != [(20, 2)]:  # SeDebugPrivilege, SE_PRIVILEGE_ENABLED
        sys.exit(f"{words}: {code}, {on}")
sys.exit(f"unchanged {done}")
"""


def test_the_token_is_after_every_entry_point_as_before(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, timeout=200)
    said = done.stderr.decode(errors="replace")
    last = said.splitlines()[-1]
    assert last.startswith("unchanged"), said
    for name in ("run", "ps", "snapshot", "doctor", "pytest"):  # those that must have done their work
        assert f"'{name}': 0" in last or f"'{name}': <ExitCode.OK: 0>" in last, said
