"""What loses a replica: lateness, silence, wrong step ids; and what does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from common.channel import Dealer, Router
from engine_core.worker_link import Awake, WorkerLost, ZmqWorkerLink, worst
from protos.worker import (
    Allocate,
    CompileGrammar,
    ErrandDone,
    ExecutePlan,
    FromWorker,
    Heartbeat,
    KvReport,
    ModelFacts,
    StepResult,
    ToWorker,
    WorkerFault,
    WorkerReady,
)

KEY = "secret"
FACTS = ModelFacts(10, 20, "f", "m", 16, 30)


class Clock:
    """A time that runs ten seconds each time it is asked, once `is_fast`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_fast = False

    def __call__(self) -> float:
        self.now += 10 if self.is_fast else 0
        return self.now


class Pair:
    """A link and the socket of its one worker."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.clock = Clock()
        self.router: Router[FromWorker] = Router(self.context, "tcp://127.0.0.1:0", FromWorker)
        self.link = ZmqWorkerLink(
            self.router, 1, self.clock, KEY,
            join_timeout_s=60.0, step_timeout_s=60.0, worker_timeout_s=30.0,
        )  # fmt: skip
        self.worker: Dealer[ToWorker] = Dealer(
            self.context, f"tcp://127.0.0.1:{self.router.port}", KEY, ToWorker
        )

    def join(self, max_blocks: int = 30) -> None:
        def answer() -> None:
            assert isinstance(self.worker.receive(10), Allocate)
            self.worker.send(WorkerReady(0, {"load": 1.0}))

        facts = msgspec.structs.replace(FACTS, max_blocks=max_blocks)
        self.worker.send(KvReport(0, facts))
        thread = threading.Thread(target=answer)
        if max_blocks:
            thread.start()
        try:
            assert self.link.join() == ([facts], max_blocks, WorkerReady(0, {"load": 1.0}))
        finally:
            if max_blocks:
                thread.join()

    def close(self) -> None:
        self.link.close()
        self.worker.close()
        self.context.term()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_a_step(pair: Pair) -> None:
    pair.join()
    pair.worker.send(StepResult(7, (1,), (1,), (5,)))
    pair.link.launch(ExecutePlan(7))
    assert pair.link.collect().token_ids == (5,)
    assert isinstance(pair.worker.receive(10), ExecutePlan)
    assert pair.link.age() == 0.0


def test_two_plans_under_way_are_answered_in_order(pair: Pair) -> None:
    pair.join()
    for step_id in (7, 8):
        pair.link.launch(ExecutePlan(step_id))
        pair.worker.send(StepResult(step_id, (1,), (1,), (step_id,)))
    assert [pair.link.collect().token_ids for _ in range(2)] == [(7,), (8,)]


def test_errands_go_with_the_plans_and_answers_come_at_any_time(pair: Pair) -> None:
    pair.join()
    errand = CompileGrammar(3, b"s")
    pair.link.launch(ExecutePlan(7))
    pair.link.send(errand)
    assert [pair.worker.receive(10) for _ in range(2)] == [ExecutePlan(7), errand]
    assert pair.link.answers() == []
    pair.worker.send(ErrandDone(0, 3))
    pair.worker.send(StepResult(7))
    assert pair.link.collect().step_id == 7
    assert pair.link.answers() == [ErrandDone(0, 3)]
    pair.worker.send(ErrandDone(0, 4))
    while not (answers := pair.link.answers()):
        pair.link.wait()
    assert answers == [ErrandDone(0, 4)]


def test_the_worst_answer_of_all_ranks_counts() -> None:
    few, many = ErrandDone(1, 3, "", 2), ErrandDone(0, 3, "", 5)
    assert worst([many, few]) == few
    failed = ErrandDone(2, 3, "why")
    assert worst([few, failed, many]) == failed


@pytest.mark.parametrize("by", ["collect", "launch"])
def test_last_words_are_heard_before_the_end_of_the_connection(pair: Pair, by: str) -> None:
    pair.join()
    pair.link.launch(ExecutePlan(1))
    assert pair.worker.receive(10) == ExecutePlan(1)
    for _ in range(50):
        pair.worker.send(Heartbeat(0))
    pair.worker.send(WorkerFault(1, "out of cheese"))
    pair.worker.close()
    deadline = time.monotonic() + 10
    while not pair.link._monitor.poll(0) and time.monotonic() < deadline:
        time.sleep(0.001)
    with pytest.raises(WorkerLost, match="out of cheese"):
        if by == "collect":
            pair.link.collect()
        else:
            while True:
                pair.link.launch(ExecutePlan(2))


def test_a_late_step_loses_the_replica(pair: Pair) -> None:
    pair.join()
    pair.clock.is_fast = True
    with pytest.raises(WorkerLost, match="step 7 took longer than 60 s"):
        pair.link.launch(ExecutePlan(7))
        pair.link.collect()


def test_a_silent_worker_loses_the_replica(pair: Pair) -> None:
    pair.join()
    pair.clock.now = 31.0
    with pytest.raises(WorkerLost, match=r"silent for 31.0 s"):
        pair.link.age()


def test_time_that_was_slept_is_nobodys_lateness(pair: Pair) -> None:
    clock = Clock()
    awake = Awake(clock)
    pair.link._clock = awake
    pair.join()
    pair.link.launch(ExecutePlan(7))
    clock.now += 1000.0
    assert pair.link.age() == 0.0
    clock.now += 1.0
    wake = pair.context.socket(zmq.PAIR)

    def sleep() -> None:
        clock.now += 1000.0
        pair.worker.send(StepResult(7))

    pair.link.attend(wake, sleep)
    pair.link.collect()
    wake.close()
    for _ in range(31):  # awake all the time
        clock.now += 1.0
        awake()
    with pytest.raises(WorkerLost, match="silent"):
        pair.link.age()


def test_a_result_of_another_step_loses_the_replica(pair: Pair) -> None:
    pair.join()
    pair.worker.send(StepResult(6))
    with pytest.raises(WorkerLost, match="rank 0 answered step 6, not 7"):
        pair.link.launch(ExecutePlan(7))
        pair.link.collect()


def test_no_room_for_one_block_names_the_knob(pair: Pair) -> None:
    with pytest.raises(WorkerLost, match="kv_cache_memory"):
        pair.join(max_blocks=0)


def test_nobody_comes(pair: Pair) -> None:
    pair.clock.is_fast = True
    with pytest.raises(WorkerLost, match="0 of 1 workers came within 30 s"):
        pair.link.join()


@pytest.mark.parametrize("rank", [-1, 1])
def test_a_rank_that_there_is_not_is_nobody(pair: Pair, rank: int) -> None:
    pair.worker.send(Heartbeat(rank))
    pair.link.wait()
    assert not pair.link._peers


@pytest.mark.parametrize("is_early", [True, False])
def test_who_has_no_lease_is_refused(
    pair: Pair, caplog: pytest.LogCaptureFixture, is_early: bool
) -> None:
    """Whoever says a rank first is not the one that it was given to."""
    if not is_early:
        pair.join()
    for name in ("a", "b"):
        stranger: Dealer[ToWorker] = Dealer(
            pair.context, f"tcp://127.0.0.1:{pair.router.port}", name, ToWorker
        )
        for message in (Heartbeat(0), StepResult(7), WorkerFault(7, "not mine")):
            stranger.send(message)
        stranger.socket.send(b"no message")
        for _ in range(4):
            assert pair.router.socket.poll(10_000)
            pair.link._receive()
        stranger.close()
    assert [record.message for record in caplog.records] == ["refused a peer that has no lease"]
    if is_early:
        pair.join()
    pair.link.launch(ExecutePlan(7))
    pair.worker.send(StepResult(7, (1,), (1,), (5,)))
    assert pair.link.collect().token_ids == (5,)


def test_a_worker_that_never_loads(pair: Pair) -> None:
    pair.worker.send(Heartbeat(0))
    while not pair.link._peers:
        pair.link.wait()
    pair.clock.is_fast = True
    with pytest.raises(WorkerLost, match="0 of 1 workers loaded within 60 s"):
        pair.link.join()


def test_a_long_wait_is_attended_to_even_when_heartbeats_come(pair: Pair) -> None:
    pair.join()
    calls: list[int] = []
    wake = pair.context.socket(zmq.PAIR)

    def attend() -> None:
        calls.append(1)
        pair.clock.now += 1.0
        if len(calls) == 3:
            pair.worker.send(StepResult(7))

    pair.clock.now = 1.0
    pair.link.attend(wake, attend)
    pair.link.launch(ExecutePlan(7))
    pair.link.collect()
    wake.close()
    assert len(calls) >= 3
