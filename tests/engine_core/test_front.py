"""The engine from its gRPC door to a worker and back: real sockets, real scheduler processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from protos.common_pb2 import (
    ABORTED,
    DEADLINE,
    EMBED,
    ERROR,
    IGNORED,
    LENGTH,
    MEAN,
    STOPPED,
)
from tests.engine_core.scheduling.checking_worker import embedding, undisturbed
from tests.engine_core.stack import Caller, Refusal, Stack, calling, running_stack
from tests.support.fake_worker import FakeWorker

Hire = Callable[..., FakeWorker]


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as running:
        yield running


@pytest.fixture
async def caller(stack: Stack) -> AsyncIterator[Caller]:
    async with calling(stack.address) as one:
        yield one


@pytest.fixture
def hire(stack: Stack) -> Iterator[Hire]:
    hired: list[FakeWorker] = []

    def start(**options: object) -> FakeWorker:
        hired.append(FakeWorker(stack.registry.port, **options))  # type: ignore[arg-type]
        return hired[-1]

    yield start
    for worker in hired:
        worker.gate.set()
        worker.die()


async def freed(stack: Stack, caller: Caller) -> None:
    """Wait until the schedulers report that nothing runs and every block is free."""
    await caller.until(
        lambda: (
            caller.states[-1].num_running == 0
            and caller.states[-1].num_waiting == 0
            and caller.states[-1].kv_usage == 0
        )
    )


async def computing(worker: FakeWorker) -> None:
    await asyncio.to_thread(worker.computing.wait, 10)


async def test_a_stream_end_to_end(stack: Stack, caller: Caller, hire: Hire) -> None:
    hire()
    state = await caller.ready()
    assert (state.num_blocks, state.block_size, state.max_model_len) == (64, 16, 512)
    assert (state.vocab_size, state.model_hash, state.num_replicas) == (1000, "m", 1)
    assert state.fingerprint == "fake context=512"
    await caller.add(5, [1, 2, 3], max_tokens=20)
    finish = await caller.ended(5)
    assert caller.tokens[5] == undisturbed([1, 2, 3], 0, 23, (), 0)
    assert (finish.reason, finish.num_prompt_tokens, finish.num_output_tokens) == (LENGTH, 3, 20)
    assert finish.timings.decode_s > 0
    assert stack.observed[0][1].num_output_tokens == 20
    await freed(stack, caller)


async def test_choices_have_slots_of_their_own(caller: Caller, hire: Hire) -> None:
    hire()
    await caller.add(1, [7], max_tokens=9, n=2, first_choice=3)
    for slot in (1, 2):
        await caller.ended(slot)
        assert caller.tokens[slot] == undisturbed([7], 2 + slot, 10, (), 0)


async def test_a_replay_goes_on_where_it_was(caller: Caller, hire: Hire) -> None:
    hire()
    whole = undisturbed([9, 9], 0, 12, (), 0)
    caller.tokens[1] = whole[:4]
    await caller.add(1, [9, 9], max_tokens=10, resumed=[whole[:4]], attempt=1)
    await caller.ended(1)
    assert caller.tokens[1] == whole


async def test_cancel_in_the_middle_of_a_step(stack: Stack, caller: Caller, hire: Hire) -> None:
    worker = hire()
    await caller.ready()
    worker.gate.clear()
    await caller.add(1, [1, 2], max_tokens=500)
    await computing(worker)
    await caller.abort(1)
    finish = await caller.ended(1)  # while the step is still running
    assert finish.reason == ABORTED
    await caller.abort(1)
    worker.gate.set()
    await freed(stack, caller)


async def test_a_stop_string_ends_with_its_own_count(caller: Caller, hire: Hire) -> None:
    hire()
    await caller.add(1, [1, 2], max_tokens=400)
    await caller.until(lambda: len(caller.tokens.get(1, ())) >= 3)
    await caller.stop_at(1, 2)
    finish = await caller.ended(1)
    assert (finish.reason, finish.num_output_tokens) == (STOPPED, 2)
    assert not finish.HasField("stop_reason")


async def test_a_closed_session_frees_all(stack: Stack, caller: Caller, hire: Hire) -> None:
    worker = hire()
    await caller.ready()
    worker.gate.clear()
    async with calling(stack.address) as other:
        for slot in range(6):
            await other.add(slot, [1, 2], max_tokens=400)
        await caller.until(
            lambda: caller.states[-1].num_waiting + caller.states[-1].num_running == 6
        )
    worker.gate.set()
    await freed(stack, caller)


async def test_messages_of_another_session_are_dropped(caller: Caller, hire: Hire) -> None:
    hire()
    await caller.add(1, [1], max_tokens=300)
    await caller.until(lambda: caller.tokens.get(1))
    await caller.send(session=caller.number - 1, aborts=[1])
    assert (await caller.ended(1)).reason == LENGTH


async def test_refusals_name_the_field_and_reach_every_slot(caller: Caller, hire: Hire) -> None:
    hire()
    await caller.ready()
    await caller.add(1, [], max_tokens=5)
    await caller.add(2, [1000], max_tokens=5, n=2)
    await caller.add(4, [1] * 600, max_tokens=5)
    await caller.add(5, [1], max_tokens=5, stop_token_ids=b"torn!")
    errors = {slot: (await caller.ended(slot)) for slot in (1, 2, 3, 4, 5)}
    assert {finish.reason for finish in errors.values()} == {IGNORED}
    assert {finish.error.kind for finish in errors.values()} == {"InvalidRequest"}
    assert [errors[slot].error.param for slot in (1, 2, 3, 4)] == [
        "prompt", "prompt_token_ids", "prompt_token_ids", "prompt",
    ]  # fmt: skip
    assert errors[4].error.code == "context_length_exceeded"


async def test_requests_wait_for_the_first_replica(caller: Caller, hire: Hire) -> None:
    assert (await caller.not_ready()).reasons == ["no worker has registered"]
    for slot in range(8):
        await caller.add(slot, [slot], max_tokens=2)
    await caller.add(8, [8], max_tokens=2)
    refused = await caller.ended(8)
    assert (refused.reason, refused.error.kind) == (IGNORED, "Overloaded")
    assert refused.error.retry_after_ms > 0
    await caller.abort(3)
    assert (await caller.ended(3)).reason == ABORTED
    await caller.add(9, [9], max_tokens=2, deadline_ms=1)
    assert (await caller.ended(9)).reason == DEADLINE
    hire()
    for slot in (0, 1, 2, 4, 5, 6, 7):
        assert (await caller.ended(slot)).reason == LENGTH
    assert 3 not in caller.tokens


async def test_a_dead_worker_ends_its_slots_for_replay_and_a_new_one_serves(
    caller: Caller, hire: Hire
) -> None:
    worker = hire()
    await caller.add(1, [1, 2], max_tokens=400)
    await caller.until(lambda: caller.tokens.get(1))
    worker.die()
    finish = await caller.ended(1)
    assert (finish.reason, finish.error.kind) == (ERROR, "Unavailable")
    assert finish.error.code == "replica_lost"
    assert not (await caller.not_ready()).ready
    new = hire()
    await caller.ready()
    assert new.lease is not None and new.lease.replica == 2
    await caller.add(2, [1, 2], max_tokens=4)
    assert (await caller.ended(2)).reason == LENGTH


async def test_who_waits_behind_a_dead_worker_is_not_to_blame() -> None:
    async with running_stack(max_num_seqs=1) as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        worker.gate.clear()  # the first step does not end
        for slot in (1, 2):
            await caller.add(slot, [1, 2], max_tokens=400)
        await caller.until(lambda: caller.states and caller.states[-1].num_waiting == 1)
        worker.gate.set()
        worker.die()
        ends = [await caller.ended(slot) for slot in (1, 2)]
        assert [finish.error.code for finish in ends] == ["replica_lost", "replica_left"]


async def test_an_idle_worker_that_dies_is_missed(caller: Caller, hire: Hire) -> None:
    worker = hire()
    await caller.ready()
    worker.die()
    await caller.not_ready()


async def test_a_failed_step_loses_the_replica(caller: Caller, hire: Hire) -> None:
    worker = hire()
    await caller.ready()
    worker.fault("out of cheese")
    await caller.add(1, [1, 2], max_tokens=4)
    finish = await caller.ended(1)
    assert finish.error.code == "replica_lost"
    assert "out of cheese" in finish.error.message


async def test_a_silent_worker_shows_in_health(caller: Caller, hire: Hire) -> None:
    worker = hire()
    await caller.ready()
    worker.hang()
    (reason,) = (await caller.not_ready()).reasons
    assert "its worker has been silent" in reason


async def test_who_comes_while_a_worker_is_silent_is_not_lost_with_it() -> None:
    async with running_stack(worker_timeout_s=2.0) as stack, calling(stack.address) as caller:
        silent = FakeWorker(stack.registry.port)
        await caller.ready()
        silent.hang()
        await caller.not_ready()
        await caller.add(1, [1, 2], max_tokens=4, attempt=2)
        await caller.until(lambda: caller.states[-1].num_replicas == 0)
        new = FakeWorker(stack.registry.port)
        assert (await caller.ended(1)).reason == LENGTH
        for worker in (silent, new):
            worker.die()


async def test_who_waits_for_a_silent_worker_runs_when_it_speaks(
    caller: Caller, hire: Hire
) -> None:
    worker = hire()
    await caller.ready()
    worker.hang()
    await caller.not_ready()
    await caller.add(1, [1, 2], max_tokens=4)
    await caller.until(lambda: caller.states[-1].num_waiting == 1)
    worker.wake()
    assert (await caller.ended(1)).reason == LENGTH


async def test_load_is_shared_by_replicas_and_lost_with_one_alone(
    stack: Stack, caller: Caller, hire: Hire
) -> None:
    workers = [hire(), hire()]
    await caller.until(lambda: caller.states and caller.states[-1].num_replicas == 2)
    for worker in workers:
        worker.gate.clear()
    for slot in range(6):
        await caller.add(slot, [1], max_tokens=300)
    await caller.until(lambda: sum(r.num_live for r in stack.fleet.ready()) == 6)
    assert [replica.num_live for replica in stack.fleet.ready()] == [3, 3]
    for worker in workers:
        worker.gate.set()
    workers[0].die()
    ends = [(await caller.ended(slot)).reason for slot in range(6)]
    assert sorted(ends) == sorted([LENGTH] * 3 + [ERROR] * 3)


async def test_a_paused_slot_gives_its_memory_and_goes_on(caller: Caller, hire: Hire) -> None:
    worker = hire()
    await caller.ready()
    worker.gate.clear()
    await caller.add(1, [1, 2], max_tokens=400)
    await computing(worker)
    await caller.send(pauses=[1, 99])
    worker.gate.set()
    state = ""
    while state != "paused":  # its blocks return with the last plan that names it
        (choice,) = (await caller.ask("request_state", request_id="r1"))["choices"]
        state = choice["state"]
        assert state in ("preempted", "paused")
    assert choice["num_blocks"] == 0
    told = choice["num_output_tokens"]
    assert told < 400
    await caller.until(lambda: len(caller.tokens[1]) == told)  # they come by another way
    await caller.send(resumes=[1])
    assert (await caller.ended(1)).reason == LENGTH
    assert caller.tokens[1] == undisturbed([1, 2], 0, 402, (), 0)


async def test_a_slot_paused_before_there_is_a_replica_stays_paused(
    caller: Caller, hire: Hire
) -> None:
    await caller.add(1, [1], max_tokens=400)
    await caller.add(2, [2], max_tokens=3)
    await caller.send(pauses=[1, 2], resumes=[2])
    hire()
    await caller.ended(2)
    state = ""
    while state != "paused":  # the order to pause follows the request by a step or two
        (choice,) = (await caller.ask("request_state", request_id="r1"))["choices"]
        state = choice["state"]
        assert state in ("running", "preempted", "paused")
    assert choice["num_output_tokens"] < 400
    await caller.send(resumes=[1])
    assert (await caller.ended(1)).reason == LENGTH


async def test_an_embedding_and_prompt_logprobs_come_before_their_end(
    caller: Caller, hire: Hire
) -> None:
    hire()
    prompt = [5] * 100
    await caller.add(1, prompt, kind=EMBED, pooling=MEAN)
    await caller.add(2, prompt, max_tokens=2, prompt_logprobs=0, report_progress=True)
    assert (await caller.ended(1)).reason == STOPPED
    await caller.ended(2)
    (embedded,) = [bulk for bulk in caller.bulks if bulk.embedding]
    assert (embedded.slot, embedded.embedding) == (1, embedding(prompt))
    told = [row for bulk in caller.bulks for row in bulk.prompt_logprobs.tokens]
    assert [row.index for row in told] == [*range(1, 100)]
    assert {row.slot for row in told} == {2}
    assert caller.progress[0].num_total == 100 and caller.progress[0].num_computed < 100
    assert [row.HasField("timings") for row in caller.progress][-2:] == [False, True]
    assert caller.progress[-1].num_computed == 100 and caller.progress[-1].timings.prefill_s > 0


async def test_questions_are_answered_by_every_replica(caller: Caller, hire: Hire) -> None:
    with pytest.raises(Refusal, match="Unavailable: no replica is up"):
        await caller.ask("cache_statistics")
    hire()
    hire()
    await caller.until(lambda: caller.states and caller.states[-1].num_replicas == 2)
    prompt = [7] * 40
    await caller.add(1, prompt, max_tokens=2)
    await caller.ended(1)
    assert await caller.ask("request_state", request_id="r1") == {"choices": []}
    rows = (await caller.ask("explain", token_ids=prompt))["replicas"]
    assert [row["replica"] for row in rows] == [1, 2]
    assert sorted(row["num_cached_tokens"] for row in rows) == [0, 32]
    statistics = (await caller.ask("cache_statistics"))["replicas"]
    assert sum(row["blocks"]["cached"] for row in statistics) == 2
    dropped = (await caller.ask("cache_reset"))["replicas"]
    assert sorted(row["num_blocks_dropped"] for row in dropped) == [0, 2]
    with pytest.raises(Refusal, match=r"InvalidRequest: weather: no such question"):
        await caller.ask("weather")
    with pytest.raises(Refusal, match=r"InvalidRequest: explain: .*token_ids"):
        await caller.ask("explain", max_tokens=1)


async def test_a_question_does_not_wait_for_a_replica_that_is_lost(
    caller: Caller, hire: Hire
) -> None:
    hire()
    await caller.ready()
    worker = hire()
    await caller.until(lambda: caller.states[-1].num_replicas == 2)
    worker.die()
    assert len((await caller.ask("cache_statistics"))["replicas"]) in (1, 2)
