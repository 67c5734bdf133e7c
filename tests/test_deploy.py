"""examples/deploy: Kubernetes and systemd accept it, all of it gives the same rights, and the settings load."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wstrace.options import Config
from wstrace.plugins import default_plugins
from wstrace_plugins.daemon.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "deploy"
CAPABILITIES = {"PERFMON", "SYS_PTRACE", "IPC_LOCK", "DAC_READ_SEARCH"}


def manifests() -> list[dict]:
    yaml = pytest.importorskip("yaml", reason="pip install kubernetes-validate")
    return list(yaml.safe_load_all((FOLDER / "daemonset.yaml").read_text()))


def daemonset() -> dict:
    (found,) = [one for one in manifests() if one["kind"] == "DaemonSet"]
    return found


@pytest.mark.parametrize("version", ["1.28", "1.31", "1.35"])
def test_kubernetes_accepts_the_manifests(version):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for one in manifests():
        validate.validate(one, version, strict=True)


def test_the_check_of_the_manifests_can_fail():
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    broken = daemonset()
    broken["spec"]["template"]["spec"]["hostPIDs"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, "1.31", strict=True)


def test_the_daemonset_has_the_rights_it_needs_and_no_others():
    pod = daemonset()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert set(rights["capabilities"]["add"]) == CAPABILITIES
    assert "privileged" not in rights
    assert not rights["allowPrivilegeEscalation"]
    assert rights["seccompProfile"] == {"type": "Localhost", "localhostProfile": "wstrace.json"}
    assert pod["hostPID"]
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"traces"}
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {"/sys/fs/cgroup", "/sys/kernel/tracing", "/var/lib/wstrace"}


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (tests/install-peers)")
    unit = tmp_path / "wstrace.service"
    shutil.copy(FOLDER / unit.name, unit)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_unit_and_compose_file_give_the_same_rights():
    unit = (FOLDER / "wstrace.service").read_text()
    for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        (line,) = re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)
        assert set(line.split()) == {f"CAP_{name}" for name in CAPABILITIES}
    yaml = pytest.importorskip("yaml", reason="pip install kubernetes-validate")
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["wstrace"]
    assert service["cap_drop"] == ["ALL"]
    assert set(service["cap_add"]) == CAPABILITIES
    assert (service["pid"], "privileged" in service) == ("host", False)


@pytest.mark.parametrize("where", ["wstrace.toml", "daemonset.yaml"])
def test_the_settings_load(where, tmp_path):
    path = tmp_path / "wstrace.toml"
    if where == "wstrace.toml":
        path = FOLDER / where
    else:
        (given,) = [one for one in manifests() if one["kind"] == "ConfigMap"]
        path.write_text(given["data"]["wstrace.toml"])
    sources, exporters = Settings(Config.load(str(path), project=False), default_plugins()).make()
    assert [one.name for one in sources] == ["page_faults"]
    assert [one.name for one in exporters] == ["msgpack", "otel_containers"]


def test_the_seccomp_profile_permits_what_tracing_needs_and_no_more_than_it_names():
    profile = json.loads((FOLDER / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {n for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for n in rule["names"]}
    assert {"perf_event_open", "bpf"} <= allowed
    assert not allowed & {"ptrace", "mount", "setns", "unshare", "init_module", "finit_module", "kexec_load", "reboot",
                          "process_vm_writev", "open_by_handle_at", "keyctl", "userfaultfd"}  # fmt: skip


def test_the_image_has_the_paths_that_are_mounted_over():
    image = (FOLDER / "Dockerfile").read_text()
    (place,) = re.findall(r"^COPY examples/deploy/wstrace.toml (\S+)$", image, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    assert json.loads(command) == ["--config", place]
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)[0]) == ["wstrace", "daemon"]


@pytest.mark.parametrize("without", ["", "perf_event_open"])
def test_under_the_profile_it_traces_and_answers_and_without_a_call_it_says_why(without, tmp_path):
    if shutil.which("setpriv") is None or not Path("/usr/lib/x86_64-linux-gnu/libseccomp.so.2").exists():
        pytest.skip("needs libseccomp")
    code = """
import asyncio, os
from wstrace_plugins.daemon.linux.health import listening, serve
os.memfd_create("wstrace", 0)
async def answer():
    await asyncio.wait([asyncio.create_task(serve(listening(("127.0.0.1", 0)), None))], timeout=0.1)
asyncio.run(answer())
from wstrace_plugins.page_faults.linux.events import own_level
print(own_level().name, own_level().why)
"""
    kit = Path(__file__).resolve().parent / "kit" / "seccomp.py"
    command = [
        sys.executable,
        kit,
        FOLDER / "seccomp.json",
        *["--without", without] * bool(without),
        "--",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert ("seccomp" in done.stdout) == bool(without), done.stdout


def test_no_job_of_the_release_that_may_write_runs_packages_of_others_and_those_of_the_build_have_hashes():
    yaml = pytest.importorskip("yaml", reason="pip install kubernetes-validate")
    root = FOLDER.parent.parent
    jobs = yaml.safe_load((root / ".github/workflows/release.yml").read_text())["jobs"]
    writing = [job for job in jobs.values() if "write" in job.get("permissions", {}).values()]
    assert [step["run"].split()[0] for job in writing for step in job["steps"] if "run" in step] == ["gh"]
    assert any("pip install --require-hashes" in step.get("run", "") for step in jobs["build"]["steps"])
    lines = (root / ".ci/release-packages").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
