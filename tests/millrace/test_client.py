"""What every EngineClient promises: one suite, in process and over gRPC."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from api_gateway.clients import TextClients
from common import rpc
from common.errors import InvalidRequest, NotFound, Unavailable
from engine_core.scheduling.scheduler import Scheduler
from millrace import engine_thread
from millrace.client import EngineClient, Piece
from millrace.engine_thread import EngineThread
from millrace.in_process import open_in_process
from millrace.params import SamplingParams
from millrace.processes import free_port
from millrace.prompts import asked
from millrace.remote import RemoteClient, open_remote
from protos import limits
from protos.common_pb2 import ABORTED, IGNORED, LENGTH, STOPPED, Finish, ModelInfo
from protos.engine_pb2 import GenerateRequest
from protos.tokenizer_pb2 import TextRequest
from protos.tokenizer_pb2_grpc import add_TokenizerServicer_to_server
from protos.worker import ExecutePlan, ModelFacts, ReplicaLost, ReplicaReady, StepResult
from tests.support.tiny_model import write_tiny_model
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.service import TokenizerService
from tokenizer_service.states import StateFeed
from tokenizer_service.text_model import load_text_model
from worker.build import load_model
from worker.model_runner import ModelRunner

KV_BYTES = 4 * 2**20


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator[EngineClient]:
    client = await open_in_process(folder, {"kv_cache_memory": KV_BYTES})
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def remote(folder: Path) -> AsyncIterator[EngineClient]:
    """A tokenizer service in this process, over a real stream."""
    metrics = TokenizerMetrics(CollectorRegistry())
    states = StateFeed()
    async with AsyncExitStack() as stack:
        text = load_text_model(folder, folder.name, metrics)
        stack.push_async_callback(text.close)
        pipeline = TextPipeline(text, metrics, on_engine_state=states.tell)
        engine = EngineThread(load_model(folder), KV_BYTES, None, pipeline)
        engine.start()
        stack.push_async_callback(engine.stop)
        server = rpc.new_server()
        add_TokenizerServicer_to_server(TokenizerService(pipeline, states), server)
        port = await rpc.start_server(server, "127.0.0.1:0")
        stack.push_async_callback(server.stop, None)
        feed = asyncio.create_task(states.run())
        stack.callback(feed.cancel)
        client = await open_remote(f"127.0.0.1:{port}", None)
        stack.push_async_callback(client.close)
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(params=[in_process, remote], ids=["in_process", "remote"])
async def client(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[EngineClient]:
    open_client: Callable[[Path], AsyncIterator[EngineClient]] = request.param
    async with open_client(folder) as opened:  # type: ignore[attr-defined]
        yield opened


def make(client: EngineClient, prompt: str = "Hello", request_id: str = "r", **params: object) -> (
    TextRequest
):  # fmt: skip
    wanted = SamplingParams(**{"max_tokens": 12, "seed": 1, "ignore_eos": True, **params})
    return asked(prompt, wanted, client.info, request_id, 0).request


async def collect(client: EngineClient, request: TextRequest) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    async for piece in client.submit(request):
        found.setdefault(piece.choice, []).append(piece)
    return found


def ids(pieces: list[Piece]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def end(pieces: list[Piece]) -> Finish:
    *before, last = pieces
    assert all(piece.finish is None for piece in before)
    assert last.finish is not None
    return last.finish


async def test_a_request_ends_once_with_all_its_tokens(client: EngineClient) -> None:
    pieces = (await collect(client, make(client)))[0]
    finish = end(pieces)
    assert (finish.reason, finish.num_prompt_tokens, finish.num_output_tokens) == (LENGTH, 5, 12)
    assert len(ids(pieces)) == 12
    assert client.info.id == "tiny"


async def test_the_same_seed_gives_the_same_answer_alone_and_in_a_crowd(
    client: EngineClient,
) -> None:
    alone = [await collect(client, make(client, f"p{i}", f"a{i}", seed=i)) for i in range(8)]
    crowd = await asyncio.gather(
        *(collect(client, make(client, f"p{i}", f"c{i}", seed=i)) for i in range(8))
    )
    assert [ids(a[0]) for a in alone] == [ids(c[0]) for c in crowd]
    assert [text(a[0]) for a in alone] == [text(c[0]) for c in crowd]
    assert len({text(a[0]) for a in alone}) == 8


async def test_choices_are_told_apart(client: EngineClient) -> None:
    found = await collect(client, make(client, n=3))
    assert sorted(found) == [0, 1, 2]
    assert len({text(pieces) for pieces in found.values()}) == 3
    assert [end(pieces).reason for pieces in found.values()] == [LENGTH] * 3


async def test_logprobs_come_one_row_a_token(client: EngineClient) -> None:
    pieces = (await collect(client, make(client, logprobs=2)))[0]
    rows = [row for piece in pieces for row in piece.logprobs]
    assert [row.index for row in rows] == list(range(12))
    assert [row.entries[0].token_id for row in rows] == ids(pieces)
    assert all(len(row.entries) >= 2 for row in rows)


async def test_a_stop_string_ends_the_text_before_it(client: EngineClient) -> None:
    whole = text((await collect(client, make(client)))[0])
    stop = whole[4:6]
    pieces = (await collect(client, make(client, request_id="s", stop=stop)))[0]
    finish = end(pieces)
    assert (finish.reason, finish.stop_string) == (STOPPED, stop)
    assert text(pieces) == whole[: whole.index(stop)]


async def test_cancel_ends_a_request_by_its_id(client: EngineClient) -> None:
    running = client.submit(make(client, request_id="long", max_tokens=400))
    pieces = [await anext(running)]
    assert await client.cancel("other") == 0
    assert await client.cancel("long") == 1
    pieces += [piece async for piece in running]
    assert end(pieces).reason == ABORTED
    assert await client.cancel("long") == 0


async def test_leaving_early_ends_the_request(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = threading.Event()
    abort = Scheduler.abort

    def spy(self: Scheduler, session: int, slot: int, now: float) -> None:
        abort(self, session, slot, now)
        aborted.set()

    monkeypatch.setattr(Scheduler, "abort", spy)
    running = client.submit(make(client, request_id="left", max_tokens=400))
    await anext(running)
    assert not aborted.is_set()
    await running.aclose()
    assert await asyncio.to_thread(aborted.wait, 10)


async def test_a_refused_request_says_why(client: EngineClient) -> None:
    finish = end((await collect(client, make(client, max_tokens=4096)))[0])
    assert finish.reason == IGNORED
    assert finish.error.kind == "InvalidRequest"
    assert "max_tokens is 4096" in finish.error.message


async def test_close_ends_what_still_runs(client: EngineClient) -> None:
    running = client.submit(make(client, max_tokens=400))
    pieces = [await anext(running)]
    await client.close()
    pieces += [piece async for piece in running]
    assert end(pieces).reason == ABORTED


async def test_closing_in_process_leaves_the_callers_loop_no_thread(folder: Path) -> None:
    before = set(threading.enumerate())
    async with in_process(folder) as client:
        await collect(client, make(client))
        assert any(thread.name == "millrace-engine" for thread in threading.enumerate())
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio"):  # the loop's own
            thread.join(20)
            assert not thread.is_alive(), thread.name


def test_an_engine_whose_loop_is_gone_ends(folder: Path) -> None:
    """As after asyncio.run without a close: nobody hears it, and it keeps the model's memory."""
    clients = list[EngineClient]()

    async def use() -> None:
        clients.append(await open_in_process(folder, {"kv_cache_memory": KV_BYTES}))
        await collect(clients[0], make(clients[0]))

    asyncio.run(use())
    for thread in threading.enumerate():
        if thread.name == "millrace-engine":
            thread.join(20)
            assert not thread.is_alive()


async def test_who_gives_up_closing_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step in flight may be a long one; what follows it is not asked for again."""
    stepping, may_end, execute = threading.Event(), threading.Event(), ModelRunner.execute

    def stand_still(self: ModelRunner, plan: ExecutePlan) -> StepResult:
        stepping.set()
        may_end.wait()
        return execute(self, plan)

    client = await open_in_process(folder, {"kv_cache_memory": KV_BYTES})
    try:
        await client._text.warm_up()  # starts what renders templates
        assert has_children()
        monkeypatch.setattr(ModelRunner, "execute", stand_still)
        running = client.submit(make(client))
        asked_for = asyncio.ensure_future(anext(running))
        await asyncio.to_thread(stepping.wait)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.close()
        assert not has_children()
    finally:
        may_end.set()
        await asyncio.gather(asked_for, return_exceptions=True)
        await running.aclose()


async def test_a_loop_that_is_closed_as_the_engine_speaks_is_no_failure() -> None:
    """The engine's thread looks whether it is; it may be so a moment later."""
    loop = asyncio.new_event_loop()
    loop.close()
    facts = ModelFacts(10, 20, "f", "m", 16, 30)
    bridge = engine_thread.Bridge(loop, ReplicaReady(facts, 30, 20), lambda *_: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "is_closed", lambda: False)
        bridge.send(ReplicaLost("ended"))


def has_children() -> bool:
    return bool(Path(f"/proc/self/task/{os.getpid()}/children").read_text())


class Panic(BaseException):
    """As libraries in Rust raise them."""


@pytest.mark.parametrize("error", [RuntimeError, Panic])
async def test_a_failed_step_is_replayed_in_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    async with in_process(folder) as client:
        expected = await collect(client, make(client, max_tokens=40))
    num_calls, execute, init = 0, ModelRunner.execute, ModelRunner.__init__
    runners: list[weakref.ref[ModelRunner]] = []

    def first_free(self: ModelRunner, *given: Any, **named: Any) -> None:
        assert not any(runner() for runner in runners), "two caches may not fit"
        runners.append(weakref.ref(self))
        init(self, *given, **named)

    def fail_once(self: ModelRunner, plan: ExecutePlan) -> StepResult:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 10:
            raise error("a kernel failed")
        return execute(self, plan)

    monkeypatch.setattr(ModelRunner, "__init__", first_free)
    async with in_process(folder) as client:
        monkeypatch.setattr(ModelRunner, "execute", fail_once)
        pieces = (await collect(client, make(client, max_tokens=40)))[0]
    assert num_calls > 40 and len(runners) == 2
    assert ids(pieces) == ids(expected[0])
    assert text(pieces) == text(expected[0])


async def test_who_fails_every_step_takes_none_along_that_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seats: the killer and its neighbour are suspects, and run alone; six others wait."""
    monkeypatch.setattr(engine_thread, "MAX_NUM_SEQS", 2)
    monkeypatch.setattr(limits, "PROOF_S", 1e9)  # however slow this machine is
    execute, killer = ModelRunner.execute, array("I", [1, 2, 3]).tobytes()
    add, held, num_failed = engine_thread.Bridge.add, list[GenerateRequest](), 0

    def add_together(self: engine_thread.Bridge, request: GenerateRequest) -> None:
        """All are there in each life of the engine that the killer ends."""
        held.append(request)
        if len(held) == 8 or num_failed == limits.MAX_ATTEMPTS:
            for one in sorted(held, key=lambda one: one.limits.priority):
                add(self, one)
            held.clear()

    def fail(self: ModelRunner, plan: ExecutePlan) -> StepResult:
        nonlocal num_failed
        if any(start.token_ids == killer for start in plan.starts):
            num_failed += 1
            raise RuntimeError("a kernel failed")
        return execute(self, plan)

    async with in_process(folder) as client:
        monkeypatch.setattr(ModelRunner, "execute", fail)
        monkeypatch.setattr(engine_thread.Bridge, "add", add_together)
        requests = [make(client, request_id=f"r{i}") for i in range(8)]
        requests[0].prompt_token_ids = killer
        requests[0].limits.priority = -1  # it runs before all others
        found = await asyncio.gather(*(collect(client, request) for request in requests))
    ends = [end(pieces[0]) for pieces in found]
    assert ends[0].error.code == "attempts_exhausted"
    assert [one.reason for one in ends[1:]] == [LENGTH] * 7


def num_dialling() -> int:
    """Return how many clients look for tokenizers: one that was not opened must not go on."""
    return sum("Peers.run" in repr(task) for task in asyncio.all_tasks())


async def test_nobody_at_the_address() -> None:
    with pytest.raises(InvalidRequest, match="url must be host:port"):
        await open_remote("http://127.0.0.1:8000", None)


async def test_another_model_is_not_found(folder: Path) -> None:
    async with remote(folder) as client:
        address = client._clients.tokenizers  # type: ignore[attr-defined]
        before = num_dialling()
        with pytest.raises(NotFound, match="'other' is not served there; served: \\['tiny'\\]"):
            await open_remote(address, "other")
        assert num_dialling() == before


async def test_an_alias_opens_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with remote(folder) as client:
        address = client._clients.tokenizers  # type: ignore[attr-defined]
        info = ModelInfo(id="tiny", aliases=["little"], max_model_len=64)
        monkeypatch.setattr(TextClients, "models", lambda self: [info])
        for name in ("little", "tiny", None):
            other = await open_remote(address, name)
            assert other.info.id == "tiny"
            await other.close()
        others = [ModelInfo(id="big", aliases=["tiny"]), info]
        monkeypatch.setattr(TextClients, "models", lambda self: others)
        other = await open_remote(address, "tiny")
        assert other.info.id == "tiny", "a name of its own goes before another's alias"
        await other.close()
        with pytest.raises(NotFound, match="model None is not served there"):
            await open_remote(address, None)


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.remote.CONNECT_TIMEOUT_S", 0.1)
    with pytest.raises(Unavailable, match="no tokenizer answers at"):
        await open_remote(f"127.0.0.1:{free_port()}", None)
    assert num_dialling() == 0


async def test_who_gives_up_opening_leaves_nothing_that_dials() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await open_remote(f"127.0.0.1:{free_port()}", None)
    assert asyncio.all_tasks() == before


async def test_what_waits_for_a_tokenizer_can_be_cancelled() -> None:
    """No tokenizer knows of it: it is ended here, and nothing of it is kept."""
    client = RemoteClient(TextClients(f"127.0.0.1:{free_port()}"), ModelInfo(id="m"))
    found = asyncio.create_task(collect(client, make(client, request_id="held")))
    await asyncio.sleep(0)
    assert await client.cancel("held") == 1
    assert end((await found)[0]).reason == ABORTED
    assert not client._jobs
    await client.close()
