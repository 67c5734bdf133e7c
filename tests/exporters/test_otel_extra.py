"""Without the extra `otel`: everything else works, and who asks for it is told what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WITHOUT = "import sys; sys.modules['opentelemetry'] = None; "
INSTALL = 'pip install "wstrace[otel]"'


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def wstrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("from wstrace.__main__ import main; sys.exit(main())", *arguments)


def test_the_package_does_not_require_opentelemetry():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert not [need for need in project["dependencies"] if need.startswith("opentelemetry")]
    assert {need.partition(">")[0] for need in project["optional-dependencies"]["otel"]} >= {
        "opentelemetry-api",
        "opentelemetry-sdk",
    }


def test_everything_else_works(tmp_path):
    out = tmp_path / "x.wst"
    done = wstrace("run", "-q", "-o", str(out), "--", sys.executable, "-c", "pass")
    assert done.returncode == 0, done.stderr
    assert wstrace("report", str(out)).returncode == 0
    listed = wstrace("plugins")
    assert listed.returncode == 0
    assert "otel" in listed.stdout
    assert "fail" not in listed.stdout + listed.stderr


@pytest.mark.parametrize("option", ["otel", "otel:to=console", "otel:providers=global"])
def test_the_exporter_says_what_to_install_before_the_target_runs(option, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    ran = tmp_path / "ran"
    done = wstrace("run", "-e", option, "--", sys.executable, "-c", f"open({str(ran)!r}, 'w')")
    assert done.returncode == 122, done.stderr
    assert INSTALL in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not ran.exists()


@pytest.mark.parametrize("code", ["import wstrace; wstrace.otel", "import wstrace\nwith wstrace.span('x'): pass"])
def test_the_api_says_what_to_install(code):
    done = python(code)
    assert done.returncode == 1
    assert "wstrace.errors.Unavailable" in done.stderr.splitlines()[-1]
    assert INSTALL in done.stderr.splitlines()[-1]


BROKEN = """
import sys

NAMES = ("opentelemetry.sdk.version", "opentelemetry.exporter.otlp.proto.common", "requests", "grpc",
         "opentelemetry.exporter.prometheus")
class Finder:
    def find_spec(name, path=None, target=None):
        if name.startswith(NAMES):
            raise {error}
sys.meta_path.insert(0, Finder)
from wstrace.errors import Unavailable
from wstrace_exporters.otel.extra import need_sdk
from wstrace_exporters.otel.transport import connection, encode, meters
for load in (lambda: need_sdk("this"), encode.metrics.load, lambda: connection._http(None),
             lambda: connection._grpc(None), lambda: meters.MeterProviders.serve(None)):
    try:
        load()
    except Unavailable as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("ImportError('libx.so: cannot\\nmap')", "is installed, and cannot be loaded: libx.so: cannot map"),
        ("ModuleNotFoundError(name)", 'is not installed; pip install "wstrace['),
    ],
)
def test_a_package_that_cannot_be_loaded_is_not_told_as_missing(error, told):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(error=error)], capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    for line, package in zip(
        lines,
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-common", "requests", "grpcio",
         "opentelemetry-exporter-prometheus"),
        strict=True,
    ):  # fmt: skip
        assert f"needs the package {package}, which {told}" in line
