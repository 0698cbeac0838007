"""The socket of the public port. Gateways may share a port; with strangers they do not.

SO_REUSEPORT alone would let a second stack, or any program of the same user, take half of the
connections in silence: so a port that is taken must answer as a gateway before it is shared.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from http.client import HTTPConnection, HTTPException

from api_gateway.health import SERVICE
from common.errors import PortTaken
from protos.limits import MAX_CONNECTIONS

log = logging.getLogger(__name__)
BACKLOG = 2048
SEND_BUFFER_BYTES = 2**18  # what a client that reads nothing can have waiting in the kernel
OTHER_FILES = 256  # beside connections
SIBLING_WAIT_S = 5.0  # two gateways that start together: one has bound and does not answer yet


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; raise PortTaken naming the port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PortTaken(f"host {host!r} cannot be listened on: {error.strerror}") from error
    is_taken = port != 0 and not can_bind(family, address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind(address)
        if is_taken and not is_sibling(host, port):
            raise PortTaken(f"port {port} on {host} is used by another program")
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise PortTaken(f"port {port} on {host} cannot be used: {error.strerror}") from error
    except PortTaken:
        sock.close()
        raise
    return sock


def allow_connections() -> None:
    """Raise the bound of open files, 1024 in most shells, to what the connections may take.

    Who comes when there are no more is cut off before anybody could say why, so a lower bound that
    cannot be raised is told now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_FILES
    if resource.RLIM_INFINITY != hard < wanted:
        log.warning(
            "room for fewer connections than may come; beyond it they are cut off without a word: "
            "raise the bound of open files (ulimit -n)", extra={"files": hard, "wanted": wanted},
        )  # fmt: skip
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def can_bind(family: int, address: tuple[object, ...]) -> bool:
    """Return whether nobody at all has the address."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def is_sibling(host: str, port: int) -> bool:
    """Return whether what listens there says that it is a gateway of ours."""
    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    until = time.monotonic() + SIBLING_WAIT_S
    while time.monotonic() < until:
        connection = HTTPConnection(target, port, timeout=SIBLING_WAIT_S)
        try:
            connection.request("GET", "/version")
            return f'"service":"{SERVICE}"'.encode() in connection.getresponse().read(1000)
        except ConnectionRefusedError:
            time.sleep(0.1)
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
    return False
