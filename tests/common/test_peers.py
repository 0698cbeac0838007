"""Who keeps the streams outlives what goes wrong with names and with a stream's own task."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from common import peers
from common.names import Names
from common.peers import Peers, Stream


class Opened:
    """The first message of a stream, as far as it is looked at."""

    opened = type("Session", (), {"session": 1})

    def WhichOneof(self, group: str) -> str:
        return "opened"


class Call:
    """A stream that opens."""

    async def read(self) -> Any:
        return Opened()

    def cancel(self) -> None: ...


async def test_a_failure_to_look_names_up_ends_no_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0
    over = asyncio.Event()

    async def look_up(names: Names) -> set[str]:
        nonlocal looks
        looks += 1
        if looks > 2:
            over.set()
        if looks > 1:
            raise RuntimeError("can't start new thread")
        return {"127.0.0.1:1"}

    async def converse(stream: Stream, opened: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Names, "look_up", look_up)
    monkeypatch.setattr(peers, "RESOLVE_EVERY_S", 0.01)
    kept = Peers("engine", "e:1", lambda line: Call(), converse)
    running = asyncio.create_task(kept.run())
    async with asyncio.timeout(10):
        await over.wait()
    assert kept.unreachable() == [] and not running.done()
    assert "cannot follow the names" in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_address_whose_task_has_ended_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = 0
    again = asyncio.Event()

    async def look_up(names: Names) -> set[str]:
        return {"127.0.0.1:1"}

    async def converse(stream: Stream, first: Any) -> None:
        nonlocal opened
        opened += 1
        if opened == 1:
            raise asyncio.CancelledError
        again.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Names, "look_up", look_up)
    monkeypatch.setattr(peers, "RESOLVE_EVERY_S", 0.01)
    with caplog.at_level(logging.ERROR):
        running = asyncio.create_task(Peers("engine", "e:1", lambda line: Call(), converse).run())
        async with asyncio.timeout(10):
            await again.wait()
    assert "stream given up" in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_open_stream_outlives_its_name_and_a_dial_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_one, mute, newer = (f"127.0.0.1:{port}" for port in (1, 2, 3))
    found = iter([{open_one, mute}, set[str]()])  # no name at all says nothing
    is_open, over = asyncio.Event(), asyncio.Event()
    unreachable: list[list[str]] = []
    ended: list[str] = []

    class Mute(Call):
        async def read(self) -> Any:
            await asyncio.Event().wait()

    async def look_up(names: Names) -> set[str]:
        if unreachable:
            await is_open.wait()
        unreachable.append(kept.unreachable())
        if len(unreachable) > 3:
            over.set()
        return next(found, {newer})

    async def converse(stream: Stream, opened: Any) -> None:
        is_open.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(stream.address)

    monkeypatch.setattr(Names, "look_up", look_up)
    monkeypatch.setattr(peers, "RESOLVE_EVERY_S", 0.01)
    calls = iter([Call()])
    kept = Peers("engine", "e:1", lambda line: next(calls, Mute()), converse)
    running = asyncio.create_task(kept.run())
    async with asyncio.timeout(10):
        await over.wait()
    assert unreachable[1:4] == [[mute], [mute], [newer]] and not ended
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Scripted:
    """A stream that says what it is told, then ends; knows whether it was given up."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [*messages, peers.EOF]
        self.is_cancelled = False

    async def read(self) -> Any:
        return self.messages.pop(0)

    def cancel(self) -> None:
        self.is_cancelled = True


class Loud:
    """A first message that opens nothing."""

    def WhichOneof(self, group: str) -> str:
        return "state"


@pytest.mark.parametrize(
    ("messages", "reason", "is_open"),
    [
        ((), "the engine closed the stream", False),
        ((Loud(),), "protocol: the stream did not open with a session", False),
        ((Opened(),), "protocol: nonsense", True),
    ],
)
async def test_a_stream_that_ends_is_given_up_and_says_why(
    messages: tuple[Any, ...], reason: str, is_open: bool
) -> None:
    seen: list[list[str]] = []

    async def converse(stream: Stream, opened: Any) -> None:
        seen.append(kept.unreachable())
        raise peers.Breach("nonsense")

    kept = Peers("engine", "", lambda line: None, converse)
    kept._tasks = {"a": asyncio.create_task(asyncio.sleep(0))}
    call = Scripted(*messages)
    stream = Stream("a", None, call)  # type: ignore[arg-type]
    assert await kept._use(stream) == reason
    assert (stream.is_open, call.is_cancelled) == (is_open, True)
    assert seen == ([[]] if is_open else []) and kept.unreachable() == ["a"]


async def test_who_is_away_for_long_is_dialled_every_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = iter([False] * 8 + [True] + [False] * 2)
    slept: list[float] = []

    async def use(stream: Stream) -> str:
        is_open = next(ends, None)
        if is_open is None:
            raise asyncio.CancelledError
        stream.is_open = is_open
        return "it is away"

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    kept = Peers("engine", "", lambda line: None, lambda stream, opened: sleep(0))
    monkeypatch.setattr(kept, "_use", use)
    monkeypatch.setattr(peers.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await kept._keep_connected("127.0.0.1:9")
    grown = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert slept == pytest.approx([*grown, 0.05, 0.1, 0.2])
