"""A tier for tests of the runner: answers on its ports, tells its environment, dies on request.

It imports little, as every test starts several: `http.server` takes longer than Python's own start.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading

SETTINGS = {key: value for key, value in os.environ.items() if key.startswith("FAKE_")}


def serve(port: socket.socket) -> None:
    while True:
        connection, _ = port.accept()
        with connection:
            connection.settimeout(5)
            try:
                answer(connection)
            except OSError:
                pass  # who asked has left, or says nothing


def answer(connection: socket.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        if not (part := connection.recv(2**16)):
            return
        request += part
    gate = SETTINGS.get("FAKE_GATE")
    shut = request.startswith(b"GET /ready ") and gate and not os.path.exists(gate)
    engines = [{"fingerprint": SETTINGS.get("FAKE_FINGERPRINT", "")}]
    told = {"pid": os.getpid(), "reasons": ["the gate is shut"], "engines": engines}
    status = "503 Service Unavailable" if shut else "200 OK"
    connection.sendall(f"HTTP/1.0 {status}\r\n\r\n{json.dumps({**SETTINGS, **told})}".encode())


def stop(*_: object) -> None:
    os.write(1, b"fake: stopping\n")
    os._exit(0)


def main() -> None:
    if status := SETTINGS.get("FAKE_BROKEN"):
        sys.stderr.write("fake: this setting is wrong\n")
        sys.exit(int(status))
    if SETTINGS.get("FAKE_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, stop)
    if SETTINGS.get("FAKE_GRANDCHILD"):  # in a session of its own: no group signal reaches it
        os.posix_spawnp("sleep", ["sleep", "1000"], os.environ, setsid=True)
    for key in ("FAKE_PORT", "FAKE_METRICS_PORT"):
        address = (SETTINGS["FAKE_HOST"], int(SETTINGS[key]))
        port = socket.create_server(address, reuse_port=True)
        threading.Thread(target=serve, args=[port], daemon=True).start()
    sys.stdout.write(f"fake: listening, pid {os.getpid()}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
