"""A leak beside a line that frees and reuses memory: who touched a page first is said, and not who keeps it."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time

import pytest
from kit.command_line import begun, wstrace
from kit.object_stores import free_port

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux"),
    pytest.mark.usefixtures("full_level", "python_stacks"),
]
BLAMED = "which frees and reuses memory: another line may keep it"

SERVICE = """
import sys
import fastapi, uvicorn
app, kept = fastapi.FastAPI(), []

@app.post("/")
def add(n: int):
    kept.append([{"id": i, "name": f"record {n} {i}"} for i in range(500)])
    return len(kept)

@app.get("/")
def show():
    return [{"id": i, "text": "x" * 50} for i in range(20000)]

uvicorn.run(app, port=int(sys.argv[1]), log_level="critical")
"""
LEAK = """
import time
kept = []
def keep():
    kept.append(bytearray(b"x" * 250_000))
end = time.monotonic() + 60
while time.monotonic() < end:
    keep()
    time.sleep(0.02)
"""


@pytest.fixture
def service(tmp_path):
    program, port = tmp_path / "api.py", free_port()
    program.write_text(SERVICE)
    with subprocess.Popen([sys.executable, program, str(port)]) as process:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid, port
        process.kill()


def test_a_service_that_keeps_in_one_request_and_churns_in_another(service, tmp_path):
    pid, port = service
    with (
        begun("attach", pid, "-o", tmp_path / "x.wst") as tracer,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
    ):
        end, rounds = time.monotonic() + 6, 0
        while time.monotonic() < end or rounds < 30:
            for method in ("POST", "POST", "POST", "POST", "GET"):
                connection.request(method, "/?n=1")
                assert connection.getresponse().read()
            rounds += 1
        tracer.send_signal(signal.SIGINT)
        said = tracer.communicate(timeout=60)[1].splitlines()
    answer = wstrace("report", tmp_path / "x.wst").stdout.splitlines()[0]
    assert answer == said[0]
    assert answer.startswith("+")
    assert "first touched by " in answer
    assert answer.endswith(BLAMED)
    assert json.loads(wstrace("report", "--json", tmp_path / "x.wst").stdout)["answer"] == answer
    over = wstrace("report", "--over-time", "1s", tmp_path / "x.wst").stdout.splitlines()[0]
    assert over.endswith(BLAMED)
    assert any("memray attach" in line for line in said)


def test_a_leak_without_churn_is_its_own_line(tmp_path):
    program = tmp_path / "leak.py"
    program.write_text(LEAK)
    with subprocess.Popen([sys.executable, program]) as process:
        time.sleep(1)
        said = wstrace("attach", process.pid, "--duration", "3s").stderr
        process.kill()
    assert "keep leak.py:5" in said.splitlines()[0]
    assert "another line may keep it" not in said
