"""`python -m common.healthcheck URL` exits 0 when the URL answers 200: the probe of a container."""

import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit


def main(url: str) -> int:
    """Ask once, wait two seconds at most; return the exit status."""
    try:
        connection = HTTPConnection((parts := urlsplit(url)).netloc, timeout=2)
        connection.request("GET", parts.path)
        return int(connection.getresponse().status != 200)
    except (OSError, HTTPException):
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
