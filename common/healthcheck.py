"""`python -m common.healthcheck URL` exits 0 when the URL answers 200: the probe of a container."""

import socket
import sys
from urllib.parse import urlsplit


def main(url: str) -> int:
    """Ask once, wait two seconds at most; return the exit status."""
    try:
        with socket.create_connection(((to := urlsplit(url)).hostname, to.port or 80), 2) as door:
            door.sendall(f"GET {to.path} HTTP/1.0\r\nHost: {to.netloc}\r\n\r\n".encode())
            return int(door.makefile("rb").readline().split()[1:2] != [b"200"])
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
