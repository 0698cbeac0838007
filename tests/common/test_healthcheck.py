"""The probe of a container: 0 for an answer of 200, 1 for any other and for none."""

from __future__ import annotations

import socket
from threading import Thread

import pytest

from common.healthcheck import main


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", 1),
        (b"hello 2000\r\n", 1),
        (b"", 1),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_only_an_answer_of_200_is_health(host: str, answer: bytes, status: int) -> None:
    asked: list[bytes] = []

    def serve() -> None:
        connection, _ = door.accept()
        with connection:
            asked.append(connection.recv(4096))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = Thread(target=serve)
        thread.start()
        port = door.getsockname()[1]
        assert main(f"http://{host}:{port}/ready") == status
        thread.join()
    assert asked[0].startswith(b"GET /ready HTTP/1.") and asked[0].endswith(b"\r\n\r\n")
    assert f"\r\nHost: {host}:{port}\r\n".encode() in asked[0]
    assert main(f"http://{host}:{port}/ready") == 1
