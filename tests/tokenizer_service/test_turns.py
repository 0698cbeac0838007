"""Tenants take turns at a sandbox, and none fills its queue for the others."""

from __future__ import annotations

import asyncio
import json

import pytest

from common.errors import Overloaded
from protos.common_pb2 import Grammar, Limits
from protos.tokenizer_pb2 import ChatInput, ConvertRequest, Resumed, TextOptions
from tests.tokenizer_service.stage import Build
from tokenizer_service.sandbox import Sandbox
from tokenizer_service.turns import Asker, Turns

ANNA, BEN, CARL = Asker("anna"), Asker("ben"), Asker("carl")
CHAT = ChatInput(messages_json=json.dumps([{"role": "user", "content": "Hi"}]).encode())


async def order(turns: Turns, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        tenant, message = await turns.next()
        found.append(message)
        for answer in turns.take(tenant, message):
            answer.set_result(message)
    return found


async def test_one_of_each_in_turn() -> None:
    turns = Turns(9)
    for message in (b"a0", b"a1", b"a2"):
        turns.add(message, ANNA)
    for message, asker in ((b"b0", BEN), (b"b1", BEN), (b"c0", CARL)):
        turns.add(message, asker)
    assert await order(turns, 2) == [b"a0", b"b0"]
    turns.add(b"b2", BEN)
    assert await order(turns, 5) == [b"c0", b"a1", b"b1", b"a2", b"b2"]
    waiting = asyncio.create_task(order(turns, 1))
    await asyncio.sleep(0)
    turns.add(b"c1", CARL)
    assert await waiting == [b"c1"] and not turns._waiting


async def test_a_tenant_has_only_so_much_waiting() -> None:
    turns = Turns(2)
    for message in (b"a0", b"a1"):
        turns.add(message, ANNA)
    with pytest.raises(Overloaded, match="2 requests of this tenant wait") as caught:
        turns.add(b"a2", ANNA)
    assert caught.value.http_status == 429 and caught.value.retry_after_s
    turns.add(b"b0", BEN)
    turns.add(b"a2", Asker("anna", is_replay=True))
    assert await order(turns, 4) == [b"a0", b"b0", b"a1", b"a2"]
    turns.add(b"a3", ANNA)


async def test_what_was_abandoned_takes_no_place() -> None:
    """Also before its turn, and while the one before it is under way."""
    turns = Turns(2)
    first, second = (turns.add(message, ANNA) for message in (b"a0", b"a1"))
    tenant, message = await turns.next()
    for answer in (first, second):
        answer.cancel()
    turns.add(b"a2", ANNA)
    with pytest.raises(Overloaded):
        turns.add(b"a3", ANNA)
    assert turns.take(tenant, message) == []
    assert await order(turns, 1) == [b"a2"] and not turns._waiting


async def test_the_same_has_one_place_and_one_answer() -> None:
    """Also where it is asked while it is under way, and where who asked first is gone."""
    turns = Turns(1)
    first, second = (turns.add(b"a", ANNA) for _ in range(2))
    other = turns.add(b"a", BEN)
    tenant, message = await turns.next()
    third = turns.add(b"a", ANNA)
    first.cancel()
    assert turns.take(tenant, message) == [second, third]
    assert turns.take(*await turns.next()) == [other] and not turns._waiting


async def test_what_nobody_waits_for_is_passed() -> None:
    turns = Turns(9)
    gone = [turns.add(message, ANNA) for message in (b"a0", b"a1")]
    turns.add(b"b0", BEN)
    gone += [turns.add(b"c0", CARL)]
    for answer in gone:
        answer.cancel()
    assert await order(turns, 1) == [b"b0"]
    kept = turns.add(b"a2", ANNA)
    turns.cancel()
    assert kept.cancelled() and not turns._waiting


async def test_the_sandboxes_know_whose_request_it_is(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, askers = Sandbox.ask, []

    async def recording(self: Sandbox, message: bytes, asker: Asker) -> bytes:
        askers.append((self._module.rpartition(".")[2], asker))
        return await ask(self, message, asker)

    monkeypatch.setattr(Sandbox, "ask", recording)
    stage = build()
    anna = Limits(tenant="anna")
    await stage.submit(0, chat=CHAT, limits=anna)
    await stage.submit(1, limits=anna, text=TextOptions(grammar=Grammar(kind=2, text="a")))
    await stage.submit(2, chat=CHAT, limits=anna, resumed=[Resumed()])
    await stage.pipeline.convert(ConvertRequest(model="tiny", tenant="ben", chat=CHAT))
    assert not stage.gateway.finishes and askers == [
        ("template_process", ANNA),
        ("grammar", ANNA),
        ("template_process", Asker("anna", is_replay=True)),
        ("template_process", BEN),
    ]


async def test_too_much_of_a_tenant_is_a_429(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenizer_service.template_process.MOST_WAITING", 0)
    stage = build()
    await stage.submit(chat=CHAT, limits=Limits(tenant="anna"))
    error = stage.gateway.finishes[0].error
    assert error.kind == "Overloaded" and "of this tenant wait" in error.message
    assert error.retry_after_ms == 1000
