"""Runs a command under a seccomp profile in the form that container runtimes read, by libseccomp.

python tests/kit/seccomp.py PROFILE.json [--without SYSCALL] -- COMMAND...
"""

import ctypes
import json
import os
import sys
from pathlib import Path

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_COMPARISONS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class _Argument(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def enter(profile: dict, without: str = "") -> list[str]:
    """Puts this process under the profile, less one syscall. Returns the names that this machine does not know."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Argument)
    )  # fmt: skip
    library.seccomp_load.argtypes = (ctypes.c_void_p,)
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    context, unknown = library.seccomp_init(_ERRNO | profile["defaultErrnoRet"]), []
    for rule in profile["syscalls"]:
        action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | rule["errnoRet"]
        given = [
            _Argument(a["index"], _COMPARISONS[a["op"]], a["value"], 0) for a in rule.get("args", ())
        ]  # of a masked comparison, `value` is the mask, and what is masked is compared with `valueTwo`, 0
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == -1:
                unknown.append(name)
            elif name != without:
                array = (_Argument * max(1, len(given)))(*given)
                assert library.seccomp_rule_add_array(context, action, number, len(given), array) == 0, name
    assert library.seccomp_load(context) == 0
    return unknown


if __name__ == "__main__":
    options, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    enter(json.loads(Path(options[0]).read_text()), *options[2:3])
    os.execvp(command[0], command)
