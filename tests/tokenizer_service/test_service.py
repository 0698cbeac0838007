"""The whole tier over real gRPC: a gateway's stream on one side, scripted engines on the other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from common import peers, rpc
from protos.common_pb2 import EngineState, FinishReason, Limits, Query
from protos.engine_pb2 import Bulk, EngineRequest, GenerateRequest
from protos.limits import MAX_U32
from protos.tokenizer_pb2 import (
    CancelRequest,
    ChatInput,
    ConvertRequest,
    GatewayMessage,
    TextBatch,
    TextMessage,
    TextOptions,
    TextRequest,
)
from protos.tokenizer_pb2_grpc import TokenizerStub, add_TokenizerServicer_to_server
from protos.words import NO_ENGINE
from tests.support.fake_engine import FakeEngine, finish, ids_of, ready_state, token_batch
from tokenizer_service import service as service_module
from tokenizer_service.engines import GrpcEngine, engine_peers
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.service import MAX_PENDING_BATCHES, Outbox, TokenizerService
from tokenizer_service.states import StateFeed
from tokenizer_service.step_text import SessionText, entries
from tokenizer_service.text_model import load_text_model


class GatewayStream:
    """One gateway's end of the stream."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.call = stub.Session()
        self.session = 0
        self.models: list[Any] = []

    async def open(self) -> GatewayStream:
        first = await self.call.read()
        self.session, self.models = first.opened.session, list(first.opened.models)
        return self

    async def send(self, *adds: TextRequest, session: int | None = None, **rest: Any) -> None:
        number = self.session if session is None else session
        await self.call.write(GatewayMessage(session=number, adds=adds, **rest))

    async def until(self, done: Callable[[TextMessage], bool]) -> list[TextMessage]:
        messages: list[TextMessage] = []
        while not messages or not done(messages[-1]):
            messages.append(await self.call.read())
        return messages

    async def ready(self) -> None:
        await self.until(lambda message: message.state.ready)

    async def text(self, slot: int) -> tuple[str, Any]:
        """Return the whole text and the Finish of a slot."""
        text, ends = "", list[Any]()
        while not ends:
            batch = (await self.call.read()).batch
            text += text_in(batch, slot)
            ends = [end for end in batch.finishes if end.slot == slot]
        return text, ends[0]


def text_in(batch: TextBatch, slot: int) -> str:
    return "".join("".join(row.texts) for row in entries(batch) if row.slot == slot)


class Tier:
    """The text tier in process, with its gRPC server on a free port."""

    def __init__(self, pipeline: TextPipeline, stub: Any, states: StateFeed) -> None:
        self.pipeline = pipeline
        self.stub = stub
        self.states = states

    async def gateway(self) -> GatewayStream:
        return await GatewayStream(self.stub).open()


@asynccontextmanager
async def tier(folder: Path, engines: list[FakeEngine]) -> AsyncIterator[Tier]:
    metrics, states = TokenizerMetrics(CollectorRegistry()), StateFeed()
    model = load_text_model(folder, "tiny", metrics)
    pipeline = TextPipeline(model, metrics, on_engine_state=states.tell)
    server = rpc.new_server()
    addresses = ",".join(f"127.0.0.1:{engine.port}" for engine in engines)
    connections = engine_peers(addresses, pipeline)
    service = TokenizerService(pipeline, states, connections.unreachable)
    add_TokenizerServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = await rpc.start_server(server, "127.0.0.1:0")
    links = asyncio.create_task(connections.run())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(model.close)
        stack.push_async_callback(server.stop, None)
        channel = await stack.enter_async_context(rpc.channel(f"127.0.0.1:{port}"))
        yield Tier(pipeline, TokenizerStub(channel), states)  # type: ignore[no-untyped-call]
        links.cancel()
        await asyncio.gather(links, return_exceptions=True)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    await fake.start()
    yield fake
    await fake.stop()


def request(slot: int = 0, **fields: Any) -> TextRequest:
    given: dict[str, Any] = {
        "model": "tiny",
        "request_id": f"r{slot}",
        "slot": slot,
        "prompt": "Hello",
    }
    return TextRequest(**(given | fields))


async def test_a_chat_from_end_to_end(tiny_folder: Path) -> None:
    engine = FakeEngine(script=lambda request: [*"Hi 你".encode()])
    await engine.start()
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        assert [model.id for model in gateway.models] == ["tiny"]
        messages = json.dumps([{"role": "user", "content": "x<|im_end|>"}]).encode()
        chat = TextRequest(
            model="tiny",
            slot=5,
            limits=Limits(max_tokens=6),
            chat=ChatInput(messages_json=messages),
        )
        await gateway.send(chat)
        text, end = await gateway.text(5)
        assert text == "Hi 你" and end.reason == FinishReason.LENGTH
        assert end.num_output_tokens == 6
    await engine.stop()


async def test_a_stop_string_reaches_gateway_and_engine(
    tiny_folder: Path, engine: FakeEngine
) -> None:
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        await gateway.send(request(text=TextOptions(stop=["!"])))
        sent = await engine.adds.get()
        engine.send(token_batch([(sent.slot, 0, list(b"ab!c"))]))
        text, end = await gateway.text(0)
        assert (text, end.stop_string, end.num_output_tokens) == ("ab", "!", 3)
        stop = await engine.stops.get()
        assert (stop.slot, stop.num_output_tokens) == (sent.slot, 3)


async def test_the_session_opens_without_any_engine(tiny_folder: Path) -> None:
    async with tier(tiny_folder, []) as service:
        gateway = await service.gateway()
        assert gateway.models[0].max_model_len == 0
        (message,) = await gateway.until(lambda message: message.WhichOneof("body") == "state")
        assert (message.state.engine, message.state.ready) == (NO_ENGINE, False)


async def test_messages_of_another_session_are_dropped(
    tiny_folder: Path, engine: FakeEngine
) -> None:
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        await gateway.send(request(0), session=gateway.session + 7)
        await gateway.send(request(1))
        assert (await engine.adds.get()).request_id == "r1"
        assert engine.adds.empty()


async def test_a_gateway_that_goes_aborts_its_requests(
    tiny_folder: Path, engine: FakeEngine
) -> None:
    async with tier(tiny_folder, [engine]) as service:
        gateway, other = await service.gateway(), await service.gateway()
        await gateway.ready()
        await gateway.send(request(0, limits=Limits(n=2)))
        await other.send(request(0, request_id="other"))
        slots = {(await engine.adds.get()).request_id: None for _ in range(2)}
        assert set(slots) == {"r0", "other"}
        gateway.call.cancel()
        ended = {await engine.aborts.get(), await engine.aborts.get()}
        assert len(ended) == 2 and engine.aborts.empty()
        assert len(service.states._listeners) == 1, "nobody is told for one that has left"


async def test_abort_and_cancel_go_to_the_engine(tiny_folder: Path, engine: FakeEngine) -> None:
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        await gateway.send(request(0), request(1, limits=Limits(tenant="t")))
        slots = {}
        for _ in range(2):
            sent = await engine.adds.get()
            slots[sent.request_id] = sent.slot
        await gateway.send(aborts=[0])
        assert await engine.aborts.get() == slots["r0"]
        for tenant, count in (("x", 0), ("t", 1)):
            reply = await service.stub.Cancel(CancelRequest(request_id="r1", tenant=tenant))
            assert reply.num_cancelled == count
        assert await engine.aborts.get() == slots["r1"]


async def test_a_dead_engine_is_replayed_on_another(tiny_folder: Path) -> None:
    engines = [FakeEngine(state=None), FakeEngine()]
    for fake in engines:
        await fake.start()
    async with tier(tiny_folder, engines) as service:
        gateway = await service.gateway()
        await gateway.ready()
        await gateway.send(request(limits=Limits(max_tokens=4)))
        gets = [asyncio.create_task(fake.adds.get()) for fake in engines]
        done, waiting = await asyncio.wait(gets, return_when=asyncio.FIRST_COMPLETED)
        first = gets.index(done.pop())
        sent = gets[first].result()
        engines[first].send(token_batch([(sent.slot, 0, [0xE4, 0xBD])]))
        await gateway.until(lambda message: len(message.batch.token_ids) == 8)
        await engines[first].stop()
        second, resent = engines[1 - first], waiting.pop()
        while not resent.done():  # a replay waits for a word that came after the loss
            second.tell(ready_state())
            await asyncio.sleep(0.01)
        again = resent.result()
        assert ids_of(again.resumed_token_ids[0]) == [0xE4, 0xBD] and again.attempt == 1
        second.send(token_batch([(again.slot, 2, [0xA0, 65])]))
        second.send(token_batch([], [finish(again.slot, FinishReason.LENGTH, 4)]))
        assert (await gateway.text(0))[0] == "你A"
        await second.stop()


async def test_an_engine_that_comes_back_is_dialled_again(
    tiny_folder: Path, engine: FakeEngine
) -> None:
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        await engine.stop()
        await gateway.until(lambda message: message.state.engine == NO_ENGINE)
        await gateway.send(request())
        reborn = FakeEngine(script=lambda request: [65, 66])
        await reborn.start(engine.port)
        await gateway.ready()
        text, _ = await gateway.text(0)
        assert text == "AB"
        await reborn.stop()


async def test_a_stream_whose_slots_are_used_up_is_opened_anew(tiny_folder: Path) -> None:
    """Slots have 32 bits: at a thousand choices a second enough for seven weeks."""
    engine = FakeEngine(script=lambda request: [65, 66])
    await engine.start()
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        (seat,) = service.pipeline.seats.all()
        seat._next_slot = MAX_U32
        for slot in range(3):
            await gateway.send(request(slot))
            assert (await gateway.text(slot))[0] == "AB"
        assert engine.sessions == 2
    await engine.stop()


async def test_a_silent_engine_counts_as_lost(
    tiny_folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SILENT_AFTER_S", 0.05)
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        lost = await gateway.until(lambda m: list(m.state.reasons) == ["connection lost"])
        assert lost[-1].state.engine == "fake" and not lost[-1].state.ready


async def test_a_tier_whose_engine_is_silent_is_not_silent_itself(
    tiny_folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways must not give up a tokenizer for the engine behind it."""
    monkeypatch.setattr(service_module, "BEAT_S", 0.05)
    async with tier(tiny_folder, [engine]) as told:
        gateway = await told.gateway()
        await gateway.ready()
        assert len(await gateway.until(lambda m: m == TextMessage(batch=TextBatch()))) == 1


async def test_a_tier_that_was_stopped_itself_does_not_blame_the_engine(
    tiny_folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SILENT_AFTER_S", 0.8)

    async def tell() -> None:
        while True:
            engine.tell(ready_state())
            await asyncio.sleep(0.05)

    async with tier(tiny_folder, [engine]) as service:
        telling = asyncio.create_task(tell())
        gateway = await service.gateway()
        await gateway.ready()
        time.sleep(2)  # noqa: ASYNC251
        await asyncio.sleep(1)
        assert engine.sessions == 1
        telling.cancel()


# ── a slow gateway ───────────────────────────────────────────────────────────────────────────


def step(slot: int, offset: int, text: str) -> TextBatch:
    columns = SessionText()
    columns.add(slot, offset, text, offset, list(text.encode()))
    return columns.message()


async def test_steps_that_wait_are_joined_per_slot() -> None:
    outbox = Outbox()
    num_steps = 3 * MAX_PENDING_BATCHES
    for index in range(num_steps):
        outbox.put(step(index % 2, index // 2, "x"))
        assert len(outbox._batches) <= MAX_PENDING_BATCHES
    (message,) = await outbox.take()
    rows = {row.slot: "".join(row.texts) for row in entries(message.batch)}
    assert rows == {0: "x" * (num_steps // 2), 1: "x" * (num_steps // 2)}
    assert len(message.batch.texts) == 2


async def test_only_the_last_state_of_an_engine_waits() -> None:
    outbox = Outbox()
    for waiting in range(5):
        outbox.put_state(EngineState(engine="a", num_waiting=waiting))
    outbox.put_state(EngineState(engine="b"))
    messages = await outbox.take()
    assert [(m.state.engine, m.state.num_waiting) for m in messages] == [("a", 4), ("b", 0)]


async def test_a_taken_outbox_waits_for_more() -> None:
    outbox = Outbox()
    outbox.put(step(0, 0, "a"))
    await outbox.take()
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put(step(0, 1, "b"))
    assert [text_in(message.batch, 0) for message in await waiting] == ["b"]


async def test_bulks_come_before_the_end_and_pauses_arrive(
    tiny_folder: Path, engine: FakeEngine
) -> None:
    async with tier(tiny_folder, [engine]) as service:
        gateway = await service.gateway()
        await gateway.ready()
        await gateway.send(request(3))
        await engine.adds.get()
        await gateway.call.write(GatewayMessage(session=gateway.session, pauses=[3]))
        assert await engine.pauses.get() == ([0], [])
        await gateway.call.write(GatewayMessage(session=gateway.session, resumes=[3]))
        assert await engine.pauses.get() == ([], [0])
        engine.send_bulk(Bulk(slot=0, embedding=b"1234"))
        engine.send(token_batch([(0, 0, [97])], [finish(0, FinishReason.LENGTH, 1)]))
        *_, message = await gateway.until(lambda message: message.HasField("bulk"))
        assert (message.bulk.slot, message.bulk.embedding) == (3, b"1234")
        assert (await gateway.text(3))[0] == "a"


async def test_text_work_and_questions(tiny_folder: Path, engine: FakeEngine) -> None:
    gone = FakeEngine(state=ready_state("gone"))
    await gone.start()
    engine.answers = {"cache_statistics": b'{"hits": 1}'}
    async with tier(tiny_folder, [engine, gone]) as service:
        gateway = await service.gateway()
        missing = {"fake", "gone"}
        while missing:
            told = await gateway.until(lambda message: message.state.ready)
            missing.discard(told[-1].state.engine)
        reply = await service.stub.Convert(ConvertRequest(model="tiny", text="Hello"))
        assert ids_of(reply.token_ids) and reply.max_model_len == 256
        await gone.stop()
        await gateway.until(lambda m: list(m.state.reasons) == ["connection lost"])
        reply = await service.stub.Ask(Query(query_id=4, kind="cache_statistics"))
        answers = {a.engine: a.answer for a in reply.answers}
        assert answers["fake"].body_json == b'{"hits": 1}' and answers["fake"].query_id == 4
        assert answers[f"127.0.0.1:{gone.port}"].error.kind == "Unavailable"


async def test_what_waits_for_an_engine_goes_out_in_messages_that_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests of a lost engine come at once, and a message has a largest size."""
    monkeypatch.setattr(rpc, "MAX_MERGED_BYTES", 1000)
    link, sent = GrpcEngine("e", 7), asyncio.Queue[EngineRequest]()

    class Call:
        async def write(self, message: EngineRequest) -> None:
            sent.put_nowait(message)

    for slot in range(9):
        link.add(GenerateRequest(slot=slot, prompt_token_ids=bytes(400)))
    link.abort(8)
    writer = asyncio.create_task(link.write_to(Call()))
    messages = [await sent.get() for _ in range(3)]
    assert [[add.slot for add in m.adds] for m in messages] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [list(m.aborts) for m in messages] == [[], [], [8]], "not before what it speaks of"
    link.pause(3)
    assert list((await sent.get()).pauses) == [3]
    link.resume(3)  # taken back before it is said: within a message there is no order
    link.pause(3)
    link.pause(4)
    message = await sent.get()
    assert (list(message.pauses), list(message.resumes)) == ([4], [])
    writer.cancel()
