"""What a stack's /ready is taken for, and how long its answers are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from millrace import readiness
from millrace.processes import free_port
from millrace.readiness import get, missing, slowness, unready, wait_until_ready
from millrace.supervisor import Supervisor


class Stack:
    """What is asked of a supervisor."""

    def __init__(self, unhealthy: list[str], hopeless: list[str]) -> None:
        self._unhealthy, self._hopeless = unhealthy, hopeless
        self.ended = asyncio.Event()

    def unhealthy(self) -> list[str]:
        return self._unhealthy

    def hopeless(self) -> list[str]:
        return self._hopeless


def stack(unhealthy: list[str] | None = None, hopeless: list[str] | None = None) -> Supervisor:
    return cast(Supervisor, Stack(unhealthy or [], hopeless or []))


def reply(status: int, body: str = "") -> bytes:
    return f"HTTP/1.1 {status} Word\r\nX: y\r\n\r\n{body}".encode()


@asynccontextmanager
async def door(*replies: bytes | None) -> AsyncIterator[str]:
    """A server that gives one reply a connection, the last again and again; None keeps silent."""
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_status_and_body_are_read_to_the_end() -> None:
    async with door(reply(503, "a\r\n\r\nb")) as url:
        assert await get(f"{url}/ready") == (503, b"a\r\n\r\nb")


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-Other\r\n", b"HTTP/1.1 two\r\n\r\n", b"\x15\x03"])
async def test_who_speaks_no_http_is_named(said: bytes) -> None:
    async with door(said) as url:
        with pytest.raises(ConnectionError, match="does not speak HTTP"):
            await get(url)
        assert await missing(url, stack()) == ["no answer"]
        assert await slowness(url) == ""


async def test_who_says_nothing_is_not_waited_for() -> None:
    async with door(None) as url:
        with pytest.raises(TimeoutError):
            await get(url, timeout_s=0.05)


@pytest.mark.parametrize(
    ("status", "body", "reasons"),
    [
        (200, "", []),
        (503, '{"reasons": ["no worker", 7]}', ["no worker", "7"]),
        (503, '{"reasons": null}', ["/ready answers 503"]),
        (503, "{}", ["/ready answers 503"]),
        (404, "[1]", ["/ready answers 404"]),
        (404, "<html>", ["/ready answers 404"]),
    ],
)
def test_why_a_stack_is_not_ready(status: int, body: str, reasons: list[str]) -> None:
    assert unready(status, body.encode()) == reasons


async def test_every_replica_is_waited_for_though_the_door_is_open() -> None:
    """With two workers the line is ready with the first; what the door says goes before."""
    starting = stack(unhealthy=["worker-2"])
    async with door(reply(200)) as url:
        assert await missing(url, starting) == ["worker-2 is not healthy yet"]
        assert await missing(url, stack()) == []
    async with door(reply(503, '{"reasons": ["no worker"]}')) as url:
        assert await missing(url, starting) == ["no worker"]
    nobody = f"http://127.0.0.1:{free_port()}"
    assert await missing(nobody, starting) == ["worker-2 is not healthy yet"]
    assert await missing(nobody, stack()) == ["no answer"]


async def test_a_stranger_may_answer_anything() -> None:
    async with door(reply(503, '{"reasons": 5}')) as url:
        assert await missing(url, stack()) == ["/ready answers 503"]


async def test_reasons_are_told_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "POLL_S", 0)
    told: list[str] = []
    first, then = (reply(503, f'{{"reasons": ["{word}"]}}') for word in ("one", "two"))
    async with door(first, first, then, first, reply(200)) as url:
        assert await wait_until_ready(url, stack(), 60, told.append) == []
    assert told == ["waiting: one", "waiting: two", "waiting: one"]


async def test_what_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    async with door(reply(503, '{"reasons": ["one"]}')) as url:
        broken = stack(hopeless=["a-1", "b-2"])
        reasons = await wait_until_ready(url, broken, 60, told.append)
        assert reasons == ["a-1 does not start", "b-2 does not start"]
        assert await wait_until_ready(url, stack(), -1, told.append) == ["one"]
        (over := stack()).ended.set()
        assert await wait_until_ready(url, over, 60, told.append) == ["one"]
    assert not told


@pytest.mark.parametrize(
    ("fingerprints", "is_slow"),
    [(["cpu reference f32"], True), (["cpu bf16"], False), (["cpu bf16", "cpu reference a"], True)],
)
async def test_who_computes_with_numpy_is_told(fingerprints: list[str], is_slow: bool) -> None:
    engines = ", ".join(f'{{"fingerprint": "{one}"}}' for one in fingerprints)
    async with door(reply(200, f'{{"engines": [{engines}]}}')) as url:
        assert ("SLOW" in await slowness(url)) == is_slow
    async with door(reply(200, "{}")) as url:
        assert await slowness(url) == ""
