"""A tier for tests of the runner: answers on its ports, tells its environment, dies on request."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SETTINGS = {key: value for key, value in os.environ.items() if key.startswith("FAKE_")}


class Door(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        gate = SETTINGS.get("FAKE_GATE")
        shut = self.path == "/ready" and gate and not Path(gate).exists()
        engines = [{"fingerprint": SETTINGS.get("FAKE_FINGERPRINT", "")}]
        told = {"pid": os.getpid(), "reasons": ["the gate is shut"], "engines": engines}
        body = json.dumps({**SETTINGS, **told})
        self.send_response(503 if shut else 200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


class SharedPort(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


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
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    for key in ("FAKE_PORT", "FAKE_METRICS_PORT"):
        server = SharedPort((SETTINGS["FAKE_HOST"], int(SETTINGS[key])), Door)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"fake: listening, pid {os.getpid()}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
