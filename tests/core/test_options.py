"""Options as users type them."""

import contextlib
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.cli.tracing import Recording, Tracing
from wstrace.errors import UsageError
from wstrace.options import Config, Spec, build, parse_duration, parse_size, parse_spec


class Thing:
    name = "thing"

    def __init__(
        self,
        *,
        ring_bytes: int = 0,
        poll_ms: int = 100,
        rate: float = 1.0,
        kernel: bool = True,
        mode: Literal["fast", "full"] = "fast",
        by: Literal["", "line", "file"] = "",
        keep: int | None = None,
        path: str = "",
        names: list[str] | None = None,
    ) -> None:
        self.given = {k: v for k, v in locals().items() if k != "self"}


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("page_faults", "page_faults", {}),
        ("msgpack:path=C:\\x.wst", "msgpack", {"path": "C:\\x.wst"}),
        ("msgpack:path=a,b.wst,fsync=frame", "msgpack", {"path": "a,b.wst", "fsync": "frame"}),
        ("x:endpoint=http://localhost:4318", "x", {"endpoint": "http://localhost:4318"}),
        ("x:", "x", {}),
    ],
)
def test_a_spec_is_split_at_the_first_colon(text, name, options):
    assert parse_spec(text) == Spec(name, options)


def test_an_option_without_a_value_is_refused():
    with pytest.raises(UsageError, match="'fast' is no option"):
        parse_spec("thing:fast")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "thing:path=x.wst,kernel",
            "thing:path=x.wst,kernel ends in the option 'kernel', without a value; write kernel=yes",
        ),
        ("thing:path=x.wst,kernel,keep=2", "write kernel=yes"),
        ("thing:path=x.wst,keep", "write keep=VALUE"),
    ],
)
def test_an_option_without_a_value_is_not_taken_for_a_part_of_the_one_before_it(text, shown):
    spec = parse_spec(text)
    with pytest.raises(UsageError, match=shown):
        build(Thing, spec.options, spec.name)


def test_a_value_with_commas_is_kept():
    for text in ("thing:path=a,b.wst", "thing:path=kernel", "thing:path=x.wst,kernel=no", "thing:names=path,keep"):
        build(Thing, parse_spec(text).options, "thing")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("ring_bytes", "4MiB", 4 << 20),
        ("ring_bytes", "64k", 65536),
        ("ring_bytes", "123", 123),
        ("poll_ms", "2s", 2000),
        ("poll_ms", "50", 50),
        ("rate", "0.5", 0.5),
        ("rate", "5m", 300.0),
        ("kernel", "no", False),
        ("kernel", "ON", True),
        ("mode", "full", "full"),
        ("keep", "none", None),
        ("keep", "3", 3),
        ("path", "12", "12"),
        ("names", "a,b", ["a", "b"]),
    ],
)
def test_values_follow_the_annotation(key, text, value):
    assert build(Thing, {key: text}, "thing").given[key] == value


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("ring_byte", "1", "did you mean 'ring_bytes'"),
        ("mode", "ful", "did you mean 'full'"),
        ("by", "cgroup", "'cgroup': known: file, line$"),
        ("kernel", "maybe", "neither true nor false"),
        ("ring_bytes", "many", "not a size"),
        ("poll_ms", "soon", "not a duration"),
    ],
)
def test_a_wrong_option_names_the_nearest_or_the_reason(key, text, message):
    with pytest.raises(UsageError, match=message):
        build(Thing, {key: text}, "thing")


def test_a_missing_required_option_is_named():
    class Needs:
        def __init__(self, *, path: str) -> None: ...

    with pytest.raises(UsageError, match="write needs:path=VALUE"):
        build(Needs, {}, "needs")


@given(st.integers(0, 1 << 50))
def test_a_plain_number_of_bytes_is_itself(n):
    assert parse_size(str(n)) == n


@given(st.text(max_size=20))
def test_garbage_is_a_value_error_and_nothing_else(text):
    for parse in (parse_size, parse_duration):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


def config(tmp_path, toml="", **environ) -> Config:
    (tmp_path / "c.toml").write_text(toml)
    return Config.load(str(tmp_path / "c.toml"), environ=environ, project=False)


def test_the_precedence_is_option_variable_file(tmp_path):
    found = config(tmp_path, "[thing]\nring_bytes = '1k'\npoll_ms = 5\nkeep = 1", WSTRACE_THING__POLL_MS="7")
    options = found.options(Thing, Spec("thing", {"keep": "9"}))
    assert build(Thing, options, "thing").given | {"names": None} == Thing(ring_bytes=1024, poll_ms=7, keep=9).given
    assert found.origin("poll_ms", table="thing") == ("7", "environment")
    assert found.origin("ring_bytes", table="thing")[1].endswith("c.toml")
    assert found.origin("rate", 1.0, table="thing") == (1.0, "default")


def test_pyproject_is_read_only_when_requested(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool.wstrace]\nduration = '3s'")
    monkeypatch.chdir(tmp_path)
    assert Config.load(environ={}).get("duration") == "3s"
    assert Config.load(environ={}, project=False).get("duration") is None


@pytest.mark.parametrize("administrator", [True, False])
def test_an_administrators_trace_reads_no_pyproject_of_the_working_directory(tmp_path, monkeypatch, administrator):
    (tmp_path / "pyproject.toml").write_text("[tool.wstrace]\nduration = '3s'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wstrace.cli.tracing.is_administrator", lambda: administrator)
    options = dict.fromkeys(Tracing._fields) | {"plugin": (), "no_plugins": True}
    assert Recording(Tracing(**options)).config.get("duration") == (None if administrator else "3s")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("exporter = []", "did you mean 'exporters'"),
        ("[thing]\nringbytes = 1", "did you mean 'ring_bytes'"),
        ("[things]\nx = 1", "did you mean 'thing'"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path, toml, message):
    with pytest.raises(UsageError, match=message):
        config(tmp_path, toml).check({"thing": Thing})


@pytest.mark.parametrize("content", [b"= nothing", b"\xff\xfe\x00"])
def test_a_broken_file_is_one_clear_line(tmp_path, content):
    (tmp_path / "broken.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.toml is no TOML"):
        Config.load(str(tmp_path / "broken.toml"), environ={}, project=False)
    with pytest.raises(UsageError, match="No such file"):
        Config.load(str(tmp_path / "absent.toml"), environ={}, project=False)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"ring_bytes": 1.5}, "thing:ring_bytes: 1.5 is no whole number"),
        ({"ring_bytes": True}, "thing:ring_bytes: True is no whole number"),
        ({"rate": [1]}, r"thing:rate: \[1\] is no number"),
        ({"kernel": 1}, "thing:kernel: 1 is no true or false"),
        ({"path": 5}, "thing:path: 5 is no text"),
        ({"names": {"a": 1}}, "thing:names: {'a': 1} is no list"),
    ],
)
def test_a_value_of_a_file_that_is_of_another_type_is_refused(given, shown):
    with pytest.raises(UsageError, match=shown):
        build(Thing, given, "thing")
    assert build(Thing, {"rate": 2, "names": ["a"], "keep": None}, "thing").given["rate"] == 2
