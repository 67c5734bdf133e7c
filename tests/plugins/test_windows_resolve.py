"""Which program a command starts on Windows: what the shell's search finds, and the interpreter behind a launcher."""

import importlib.util
import io
import os
import zipfile
from pathlib import Path

import pytest

from wstrace.errors import CannotExecute, CommandNotFound
from wstrace_plugins.os.windows.resolve import resolve


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PATHEXT", ".COM;.EXE;.BAT;.CMD;.PY")
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(path, content=b"MZ"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def launcher(interpreter, main="__main__.py", stub=b"MZ" + b"\0" * 5000):
    """As pip makes it: an exe, a shebang line, a zip."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr(main, "print(1)")
    return stub + b"#!" + str(interpreter).encode() + b"\r\n" + zipped.getvalue()


def venv(folder):
    """A venv's python.exe, and the interpreter that it starts."""
    base, python = program(folder / "base" / "python.exe"), program(folder / "venv" / "Scripts" / "python.exe")
    (folder / "venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    return python, base


def test_the_program_is_what_the_search_finds_by_its_full_path(folder):
    """CreateProcess would look beside wstrace's own python.exe first."""
    found = resolve(["python.exe", "app.py"]) if program(folder / "bin" / "python.exe") else None
    assert found.path == str(folder / "bin" / "python.exe")
    assert found.arguments == ["python.exe", "app.py"]
    assert found.environment is None


def test_a_command_that_is_nowhere(folder):
    with pytest.raises(CommandNotFound, match="there is no command 'nothing'"):
        resolve(["nothing"])


@pytest.mark.parametrize("elevated", [False, True])
@pytest.mark.parametrize(("place", "name", "hint"), [
    ("bin", "tool.bat", "cmd /c"), (".", "tool.cmd", "cmd /c"), ("bin", "tool.py", "python "), (".", "tool", "python "),
])  # fmt: skip
def test_a_file_that_is_no_program(folder, monkeypatch, place, name, hint, elevated):
    monkeypatch.chdir(folder)
    path = program(folder / place / name)
    for given in (name, str(path)):
        with pytest.raises(CannotExecute) as refused:
            resolve([given, "x"], elevated=elevated)
        assert hint in refused.value.remedy


PIP = importlib.util.find_spec("pip")  # Debian takes the stubs out
STUBS = [path.read_bytes() for path in Path(PIP.origin).parent.glob("_vendor/distlib/*.exe")] if PIP else []


@pytest.mark.parametrize("quote", ["", '"'])
def test_the_launcher_of_a_script_is_resolved_to_its_interpreter(folder, quote):
    python = program(folder / "a base" / "python.exe")
    for stub in (b"MZ", *STUBS):
        tool = program(folder / "bin" / "pytest.exe", launcher(f"{quote}{python}{quote}", stub=stub))
        assert resolve(["pytest.exe", "-q"])[:2] == (str(python), [str(python), str(tool), "-q"])
        program(tool, stub)
        assert resolve(["pytest.exe"]).path == str(tool)


def test_a_launcher_in_a_venv_is_resolved_to_the_base_interpreter(folder):
    python, base = venv(folder)
    tool = program(folder / "bin" / "tool.exe", launcher(python))
    found = resolve(["tool.exe"])
    assert found.path == str(base)
    assert found.arguments == [str(python), str(tool)]
    assert found.environment == {**os.environ, "__PYVENV_LAUNCHER__": str(python)}


@pytest.mark.parametrize(("line", "options"), [
    ('"{python}" -I -X utf8', ["-I", "-X", "utf8"]), ('{python} -W "ignore::x y"', ["-W", "ignore::x y"]),
    ('"<launcher_dir>\\python.exe" -E', ["-E"]), ("<launcher_dir>\\python.exe", []), ("python.exe", []),
])  # fmt: skip
def test_a_shebang_may_have_options_and_be_relative_to_the_launcher(folder, line, options):
    python = program(folder / "bin" / "python.exe")
    tool = program(folder / "bin" / "tool.exe", launcher(line.format(python=python)))
    assert resolve(["tool.exe", "a"])[:2] == (str(python), [str(python), *options, str(tool), "a"])


@pytest.mark.parametrize(("shebang", "options"), [
    ("#!{python}\n", []), ('#!"{python}" -s\r\n', ["-s"]), ("#!python.exe\n", []), ("", []),
])  # fmt: skip
def test_a_launcher_beside_its_script_is_resolved_to_the_scripts_interpreter(folder, shebang, options):
    """setuptools' and conda's: a relative interpreter is in the folder above, which is Python's."""
    python = program(folder / "python.exe")
    program(folder / "bin" / "tool.exe")
    script = program(folder / "bin" / "tool-script.py", (shebang.format(python=python) + "print(1)\n").encode())
    assert resolve(["tool.exe", "a"])[:2] == (str(python), [str(python), *options, str(script), "a"])
    script.write_text("#!/nowhere/python.exe\n")
    assert resolve(["tool.exe", "a"])[:2] == (str(folder / "bin" / "tool.exe"), ["tool.exe", "a"])


def chooser(path, answer, code=0):
    """A python.exe that starts another one, as the Python Install Manager's."""
    return program(path, f"#!/bin/sh\nprintf %s '{answer}'\nexit {code}\n".encode())


posix = pytest.mark.skipif(os.name == "nt", reason="a shell script; in Wine see test_wine_launchers.py")


@posix
def test_a_python_that_starts_another_one_is_resolved_to_that_one(folder):
    real = program(folder / "real" / "python.exe")
    manager = chooser(folder / "bin" / "python.exe", real)
    assert resolve(["python.exe", "app.py"])[:2] == (str(real), ["python.exe", "app.py"])
    tool = program(folder / "bin" / "tool.exe", launcher(manager))
    assert resolve(["tool.exe", "a"])[:2] == (str(real), [str(manager), str(tool), "a"])


@posix
def test_a_python_that_starts_that_of_a_venv_is_resolved_to_the_base(folder):
    python, base = venv(folder)
    chooser(folder / "bin" / "python.exe", python)
    found = resolve(["python.exe"])
    assert found.path == str(base)
    assert found.environment["__PYVENV_LAUNCHER__"] == str(python)


@posix
@pytest.mark.parametrize("case", ["library", "no answer", "fails", "itself", "nowhere", "a script that chooses"])
def test_a_python_whose_answer_is_not_wanted_or_useless_is_started_as_it_is(folder, case):
    real = program(folder / "real" / "python.exe")
    asked = folder / "bin" / "python.exe"
    answers = {"no answer": "", "itself": asked, "nowhere": folder / "nowhere.exe"}
    chooser(asked, answers.get(case, real), code=int(case == "fails"))
    if case == "library":
        program(asked.with_name("python3.dll"))
    script = folder / "app.py"
    script.write_text("#! /usr/bin/env python3.9\n" if case == "a script that chooses" else "print(1)\n")
    assert resolve(["python.exe", "-u", str(script)])[:2] == (str(asked), ["python.exe", "-u", str(script)])


@pytest.mark.parametrize("words", [["a\0b"], ["tool.exe", "a\0b"]])
def test_a_word_with_a_nul_is_refused_with_the_cause(folder, words):
    program(folder / "bin" / "tool.exe")
    with pytest.raises(CannotExecute, match=r"'a\\x00b' has a NUL character"):
        resolve(words)


@pytest.mark.parametrize("content", [
    b"", b"MZ", b"PK\5\6", launcher("/nowhere/python.exe"), launcher("relative"), b"MZ#!x.exe\nPK\5\6" + b"\xff" * 18,
    launcher("x")[:-10], launcher("x").replace(b"PK\1\2\x14\x03\x14", b"PK\1\2\x14\x03\xff"),  # a later zip
])  # fmt: skip
def test_a_strange_program_is_started_as_it_is(folder, content):
    tool = program(folder / "bin" / "tool.exe", content)
    assert resolve(["tool.exe", "a"])[:2] == (str(tool), ["tool.exe", "a"])


def test_a_zip_without_a_script_is_no_launcher(folder):
    python = program(folder / "py" / "python.exe")
    tool = program(folder / "bin" / "setup.exe", launcher(python, main="data.txt"))
    assert resolve(["setup.exe"]).path == str(tool)


@pytest.mark.parametrize("library", ["python311.dll", "libpypy3.10-c.dll"])
def test_a_venv_with_a_copy_of_the_interpreter_is_started_as_it_is(folder, library):
    """It starts nothing else: uv makes such ones of an embedded Python, and everybody of PyPy."""
    python, _ = venv(folder)
    program(python.with_name(library))
    assert resolve([str(python)])[:3] == (str(python), [str(python)], None)


def test_a_venv_that_is_named_by_a_relative_path_is_reported_by_its_full_one(folder, monkeypatch):
    """The interpreter takes __PYVENV_LAUNCHER__ for its own path: its children would start it from another folder."""
    python, base = venv(folder)
    monkeypatch.chdir(folder)
    found = resolve([os.path.join("venv", "Scripts", "python.exe"), "app.py"])
    assert found.path == str(base)
    assert found.environment["__PYVENV_LAUNCHER__"] == str(python)


def test_the_current_folder_comes_first_as_in_cmd(folder, monkeypatch):
    program(folder / "bin" / "tool.exe")
    program(folder / "here" / "tool.exe")
    monkeypatch.chdir(folder / "here")
    monkeypatch.delenv("NoDefaultCurrentDirectoryInExePath", raising=False)
    assert resolve(["tool.exe"]).path == os.path.join(".", "tool.exe")


@pytest.mark.parametrize("path", ["bin", "bin:.", ".:bin", "here:bin", ":bin"])
def test_an_elevated_tracer_starts_nothing_that_lies_in_the_current_folder(folder, monkeypatch, path):
    """Whoever may write there would have his program started by an administrator."""
    there = program(folder / "bin" / "tool.exe")
    program(folder / "here" / "tool.exe")
    program(folder / "here" / "here" / "tool.exe")
    monkeypatch.chdir(folder / "here")
    monkeypatch.setenv("PATH", os.pathsep.join(str(there.parent) if p == "bin" else p for p in path.split(":")))
    assert resolve(["tool.exe"], elevated=True).path == str(there)


@pytest.mark.parametrize("how", ["elevated", "variable"])
def test_a_program_that_lies_only_there_is_reported_with_its_path(folder, monkeypatch, how):
    program(folder / "here" / "tool.exe")
    monkeypatch.chdir(folder / "here")
    if how == "variable":
        monkeypatch.setenv("NoDefaultCurrentDirectoryInExePath", "1")
    with pytest.raises(CommandNotFound, match="not started by its name") as refused:
        resolve(["tool.exe"], elevated=how == "elevated")
    written = refused.value.remedy.split()[1]
    assert resolve([written], elevated=True).path == written


def test_a_name_gets_the_endings_of_pathext_in_their_order(folder):
    program(folder / "bin" / "tool.exe")
    program(folder / "bin" / "tool.com")
    program(folder / "bin" / "tool")  # no program on Windows
    assert resolve(["tool"]).path == str(folder / "bin" / "tool.com")
    assert resolve([str(folder / "bin" / "tool")]).path == str(folder / "bin" / "tool.com")
    assert resolve(["tool.exe"]).path == str(folder / "bin" / "tool.exe")


def test_a_folder_of_path_may_stand_in_quotes_and_a_folder_is_no_program(folder, monkeypatch):
    (folder / "other" / "tool.exe").mkdir(parents=True)
    there = program(folder / "bin" / "tool.exe")
    monkeypatch.setenv("PATH", f'{folder / "other"}{os.pathsep}"{there.parent}"')
    assert resolve(["tool.exe"]).path == str(there)
