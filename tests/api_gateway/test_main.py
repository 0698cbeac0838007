"""The gateway as a process: its ports, its signals, its exit."""

from __future__ import annotations

import logging
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from api_gateway.__main__ import configure
from api_gateway.listening import allow_connections, listen
from common.errors import CANNOT_WORK, PortTaken
from protos.limits import MAX_CONNECTIONS

ROOT = Path(__file__).resolve().parents[2]


def start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "api_gateway", "--metrics-port=0", *options]
    return subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"the process ended without {word!r}")


def get(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    reply = connection.getresponse()
    answer = reply.status, reply.read().decode()
    assert reply.getheader("server") is None
    connection.close()
    return answer


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def stranger(port: int) -> Iterator[int]:
    """Another program's server, on a socket that would let itself be shared."""

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Shared(ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            super().server_bind()

    with Shared(("127.0.0.1", port), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield port
        server.shutdown()


def test_two_gateways_share_a_port_and_leave_on_sigterm(port: int) -> None:
    processes = [start(f"--port={port}") for _ in range(2)]
    try:
        for process in processes:
            read_until(process, "serving")
        assert get(port, "/live")[0] == 200
        assert get(port, "/ready")[0] == 503
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(10) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_strangers_port_is_named_in_one_line(stranger: int) -> None:
    process = start(f"--port={stranger}")
    error = process.communicate(timeout=20)[1]
    assert process.returncode == 1
    assert error == f"gateway: port {stranger} on 127.0.0.1 is used by another program\n"


def test_an_exclusive_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            listen("127.0.0.1", port)


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(PortTaken, match="host 'no.such.invalid' cannot be listened on: "):
        listen("no.such.invalid", 0)


def test_bad_settings_end_in_one_line() -> None:
    for option, word in (
        ("--port=x", "port"),
        ("--nonsense=1", "nonsense"),
        ("--tokenizers=x", "tokenizers"),
        ("--max-body-bytes=99999999", "max_body_bytes"),
    ):
        process = start(option)
        error = process.communicate(timeout=20)[1]
        assert process.returncode == CANNOT_WORK and word in error and error.count("\n") == 1


def test_a_bound_of_open_files_that_stays_low_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda which, bound: bounds.append(bound))
    allow_connections()
    assert bounds == [(100, 100)]
    assert "ulimit -n" in caplog.text


def test_the_bound_of_open_files_is_raised_to_what_connections_take() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_connections()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised[1] == hard
        assert raised[0] == hard or raised[0] > MAX_CONNECTIONS
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        allow_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("asked", "given"), [("ERROR", "ERROR"), ("DEBUG", "WARNING")])
def test_the_http_server_is_no_louder_than_asked(
    monkeypatch: pytest.MonkeyPatch, asked: str, given: str
) -> None:
    async def app(*call: object) -> None: ...

    loud = logging.getLogger("uvicorn.error")
    for one in (loud, logging.getLogger("uvicorn.access"), logging.getLogger("uvicorn.asgi")):
        monkeypatch.setattr(one, "level", one.level)
    monkeypatch.setattr(logging.getLogger(), "level", getattr(logging, asked))
    configure(app)
    assert logging.getLevelName(loud.level) == given
