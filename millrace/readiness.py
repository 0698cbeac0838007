"""Asks the gateway whether the whole line is ready, and tells what is missing meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from millrace.supervisor import Supervisor

POLL_S = 0.2
NUMPY = "cpu reference "
"""How the fingerprint of a replica begins that computes without compiled kernels."""


async def get(url: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
    """Return status and body of one GET; raise OSError when nobody answers in time."""
    parts = urlsplit(url)
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            request = (
                f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
            )
            writer.write(request.encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
            with contextlib.suppress(OSError):  # the peer may have closed first
                await writer.wait_closed()
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionError(f"{url} does not speak HTTP")
    return int(words[1]), body


async def missing(url: str, supervisor: Supervisor) -> list[str]:
    """Return why the stack at `url` is not ready; empty means ready, every replica included."""
    starting = [f"{name} is not healthy yet" for name in supervisor.unhealthy()]
    try:
        status, body = await get(f"{url}/ready")
    except OSError:
        return starting or ["no answer"]
    return unready(status, body) or starting


def unready(status: int, body: bytes) -> list[str]:
    """Return why a stack is not ready whose /ready answers so; empty means ready."""
    if status == 200:
        return []
    return [str(reason) for reason in told(body, "reasons")] or [f"/ready answers {status}"]


def told(body: bytes, name: str) -> list[Any]:
    """Return a list of what /ready says; empty when it does not say it."""
    try:
        return list(msgspec.json.decode(body).get(name) or ())
    except (msgspec.DecodeError, AttributeError, TypeError):  # a stranger at the port
        return []


async def slowness(url: str) -> str:
    """Return what a user should know of a ready stack that computes slowly; empty where none."""
    try:
        _, body = await get(f"{url}/ready")
    except OSError:
        return ""
    if not any(NUMPY in str(engine.get("fingerprint")) for engine in told(body, "engines")):
        return ""
    return "SLOW: NumPy computes, not the compiled kernels; `millrace doctor` says what they need"


async def wait_until_ready(
    url: str, supervisor: Supervisor, timeout_s: float, report: Callable[[str], None]
) -> list[str]:
    """Poll until ready and return []; give up with the reasons after `timeout_s` seconds, or sooner
    when a replica cannot run at all. Calls `report` whenever the reasons change."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    last: list[str] = []
    while reasons := await missing(url, supervisor):
        if broken := supervisor.hopeless():
            return [f"{name} does not start" for name in broken]
        if loop.time() > deadline or supervisor.ended.is_set():
            return reasons
        if reasons != last:
            report(f"waiting: {'; '.join(reasons)}")
            last = reasons
        await asyncio.sleep(POLL_S)
    return []
