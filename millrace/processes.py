"""What the kernel tells about processes and ports (Linux). Decides nothing.

A process is named by its pid and its start time: a pid alone may have passed to a stranger.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path

import msgspec

NO_PROC = "/proc does not show the processes here, and a stack needs it: mount -t proc proc /proc"
_OWN_PORTS = range(20_000, 32_000)
"""Below the range from which the kernel takes ports of outgoing connections."""


class ProcessId(msgspec.Struct, frozen=True):
    pid: int
    started: int
    """Start time in clock ticks since boot."""


def _stat(pid: int) -> list[str]:
    """Return what /proc says of a process behind its name, its state first; dead where it says
    nothing, or not to us (hidepid): such a process is another user's, by a pid that was ours."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ["X"]


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a living process, None when there is none (a zombie is none)."""
    stat = _stat(pid)
    return None if stat[0] in "ZX" else ProcessId(pid, int(stat[19]))


def age_s(process: ProcessId) -> float:
    """Return how long ago a process of this boot was started, whatever became of the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / os.sysconf("SC_CLK_TCK")


def is_halted(process: ProcessId) -> bool:
    """Tell whether a living process was stopped (SIGSTOP, a debugger) and does nothing."""
    return _stat(process.pid)[0] in "Tt"


def is_alive(process: ProcessId) -> bool:
    """Tell whether exactly this process lives."""
    return identify(process.pid) == process


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Signal exactly this process; return False when it is gone. Raises PermissionError."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    return True


def kill_group(leader: int) -> None:
    """Kill what is left of the group of a child of ours that is not reaped yet."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nothing left of it


def free_port() -> int:
    """Return a loopback port nobody listens on."""
    for _ in range(1000):
        port = random.choice(_OWN_PORTS)
        if not is_listening("127.0.0.1", port):
            return port
    raise OSError(f"no free port in {_OWN_PORTS.start}-{_OWN_PORTS.stop}")


def is_listening(host: str, port: int) -> bool:
    """Tell whether `port` is taken, also by a listener that would share it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def claim(name: str) -> socket.socket | None:
    """Take a name of this machine until the socket is closed or its process ends, however it does.

    Returns None when another process has it. The name is no file: nothing of it is left behind.
    """
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0{name}")
    except OSError:
        held.close()
        return None
    return held


def is_ipv4(host: str) -> bool:
    """Tell whether `host` is an IPv4 address in numbers."""
    try:
        return str(IPv4Address(host)) == host
    except AddressValueError:
        return False


def is_address(host: str) -> bool:
    """Tell whether this machine can listen on `host`, an IP or a name of its own."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def listener(port: int) -> tuple[int, str] | None:
    """Return (pid, name) of the process that listens on `port`, None when it cannot be seen."""
    inodes = _listening_inodes(port)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and inodes & _sockets(entry):
            with contextlib.suppress(OSError):  # ended meanwhile
                return int(entry.name), (entry / "comm").read_text().strip()
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _sockets(process: Path) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):  # another user's, or ended meanwhile
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(descriptor))
    return {link[len("socket:[") : -1] for link in found if link.startswith("socket:[")}
