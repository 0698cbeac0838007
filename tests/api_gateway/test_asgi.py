"""The body of a call: whole, within bounds, or an error before more of it is taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api_gateway import asgi
from api_gateway.asgi import Call, Message
from common.errors import Cancelled, DeadlineExceeded, PayloadTooLarge

REST = {"type": "http.disconnect"}


def call(*messages: dict[str, Any], **headers: str) -> tuple[Call, list[dict[str, Any]]]:
    """Return a call that is sent `messages`, and what of them it has not taken."""
    left = list(messages)

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError("no reply was to be sent")

    head = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Call({"method": "POST", "path": "/", "headers": head}, receive, send), left


def part(body: bytes, more_body: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more_body}


async def test_a_body_comes_in_parts() -> None:
    asked, _ = call(part(b"abc"), part(b""), part(b"de", more_body=False), content_length="5")
    assert await asked.body(5) == b"abcde"


async def test_what_says_that_it_is_too_long_is_not_taken() -> None:
    asked, left = call(part(b"abcdef", more_body=False), content_length="6")
    with pytest.raises(PayloadTooLarge):
        await asked.body(5)
    assert len(left) == 1


async def test_what_does_not_say_so_is_taken_up_to_the_bound() -> None:
    asked, left = call(part(b"abc"), part(b"def"), part(b"ghi"))
    with pytest.raises(PayloadTooLarge):
        await asked.body(5)
    assert len(left) == 1


async def test_who_leaves_within_the_body_is_gone() -> None:
    asked, _ = call(part(b"abc"), REST)
    with pytest.raises(Cancelled):
        await asked.body(5)


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "BODY_TIMEOUT_S", 0.0)
    asked, _ = call()

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    asked.receive = never
    with pytest.raises(DeadlineExceeded, match="no whole body within 0 s"):
        await asked.body(5)
