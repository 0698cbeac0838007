"""The front by itself: what it hands to replicas and to callers, without sockets or processes."""

from __future__ import annotations

import asyncio
import json
from array import array

import pytest
from prometheus_client import CollectorRegistry

from common.channel import Gone
from engine_core.caller import CallerSession
from engine_core.front import Front
from engine_core.metrics import register
from engine_core.replica import Fleet, Phase, Replica
from protos import common_pb2 as common
from protos.common_pb2 import Finish, Limits
from protos.engine_pb2 import EngineReply, EngineRequest, GenerateRequest
from protos.worker import (
    Abort,
    Add,
    CloseSession,
    Finished,
    ModelFacts,
    Query,
    QueryAnswer,
    ReplicaLost,
    ReplicaReady,
    SchedulerState,
    SessionOutput,
    StepOutput,
    ToScheduler,
)

FACTS = ModelFacts(1000, 512, "twin", "m", 16, 40)
QUIET = SchedulerState(0, 0, 40, 40, 0.0, 0.0, 0, 0, 0, 0, 0.0, 0.0)


class Board:
    """A front with one caller and the replicas that a test adds; its clock moves when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet = Fleet(5.0, lambda: self.now)
        self.front = Front("e", self.fleet, 8, lambda replica, row: None)
        self.caller = CallerSession(7)
        self.front.sessions[7] = self.caller
        self.sent: list[ToScheduler] = []

    def replica(self, number: int = 1) -> Replica:
        replica = Replica(number, (), self.sent.append)
        replica.phase, replica.state = Phase.READY, QUIET
        replica.facts = ReplicaReady(FACTS, 40, 512)
        replica.heard_at = self.now
        self.fleet.replicas[number] = replica
        return replica

    def ask(self, **fields: object) -> None:
        self.front.receive(self.caller, EngineRequest(session=7, **fields))  # type: ignore[arg-type]

    def told(self) -> tuple[list[Finish], list[common.QueryAnswer]]:
        """Return the ends and the answers that the caller is sent."""
        replies: list[EngineReply] = []

        async def write(reply: EngineReply) -> None:
            replies.append(reply)

        async def listen() -> None:
            writer = asyncio.create_task(self.caller.write_all(write))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

        self.caller._wake.set()
        asyncio.run(listen())
        ends = [finish for reply in replies for finish in reply.batch.finishes]
        return ends, [reply.answer for reply in replies if reply.WhichOneof("body") == "answer"]


def request(slot: int, **limits: object) -> GenerateRequest:
    prompt = array("I", [1, 2]).tobytes()
    known = Limits(max_tokens=4, **limits)  # type: ignore[arg-type]
    return GenerateRequest(slot=slot, request_id=f"r{slot}", prompt_token_ids=prompt, limits=known)


def ended(replica: Replica, board: Board, slot: int) -> None:
    row = Finished(slot, 2, 2, 0, 4, 0.0, 0.0, 0.0, 0)
    output = SessionOutput(7, b"", b"", b"", b"", (row,))
    board.front.replica_output(replica, StepOutput((output,)))


def test_what_one_message_adds_and_aborts_ends_also_where_no_replica_is_up() -> None:
    board = Board()
    board.ask(adds=[request(1), request(2)], aborts=[1])
    (end,), _ = board.told()
    assert (end.slot, end.reason) == (1, common.ABORTED)
    board.front.replica_ready(board.replica())
    assert [add.slot for add in board.sent if isinstance(add, Add)] == [2]


@pytest.mark.parametrize("has_silent_replica", [False, True])
def test_what_waits_for_a_replica_is_live_to_who_asks(has_silent_replica: bool) -> None:
    """It was no live request, and no metric of this tier counted it."""
    board = Board()
    if has_silent_replica:
        replica = board.replica()
        board.now += 2.0
    board.ask(adds=[request(1, n=2, tenant="a"), request(5, tenant="a"), request(7)])
    asked = b'{"request_id": "r1", "tenant": "a"}'
    board.ask(queries=[common.Query(query_id=3, kind="request_state", body_json=asked)])
    if has_silent_replica:
        board.front.replica_answer(replica, QueryAnswer(7, 3, b'{"choices": []}'))
    _, (answer,) = board.told()
    assert json.loads(answer.body_json) == {
        "choices": [{"choice": 0, "state": "waiting"}, {"choice": 1, "state": "waiting"}]
    }
    registry = CollectorRegistry()
    register(registry, board.fleet, lambda: board.front.num_held)
    assert registry.get_sample_value("millrace_num_requests_waiting", {"engine": ""}) == 4
    nobodys = common.Query(query_id=4, kind="request_state", body_json=b'{"request_id": "r9"}')
    board.ask(queries=[nobodys, common.Query(query_id=5, kind="request_state", body_json=b"{")])
    if not has_silent_replica:
        assert {answer.error.message for answer in board.told()[1]} == {"no replica is up"}


def test_a_request_on_a_live_slot_is_dropped_and_harms_nobody() -> None:
    board = Board()
    replica = board.replica()
    board.ask(adds=[request(1)])
    board.ask(adds=[request(0, n=2)])
    assert [add.slot for add in board.sent if isinstance(add, Add)] == [1]
    assert board.told() == ([], [])
    assert replica.num_live == 1


def test_each_slot_of_a_request_that_cannot_be_read_ends() -> None:
    board = Board()
    board.replica()
    board.ask(adds=[request(3, n=3, stop_token_ids=b"torn!")])
    ends, _ = board.told()
    assert [end.slot for end in ends] == [3, 4, 5]
    assert {end.error.kind for end in ends} == {"InvalidRequest"} and not board.sent


def test_a_replica_that_does_not_listen_breaks_no_stream() -> None:
    board = Board()
    replica = board.replica()

    def gone(message: ToScheduler) -> None:
        raise Gone("it")

    replica.send = gone
    board.ask(adds=[request(1)], queries=[common.Query(query_id=1, kind="cache_statistics")])
    board.front.replica_lost(replica, ReplicaLost("it ended"))
    (end,), (answer,) = board.told()
    assert (end.slot, end.error.code) == (1, "replica_lost")
    assert answer.query_id == 1


def test_a_caller_that_leaves_takes_all_it_had_with_it() -> None:
    board = Board()
    board.ask(adds=[request(1)], queries=[])
    board.front._close(board.caller)
    replica = board.replica()
    board.front.replica_ready(replica)
    assert not board.sent, "nobody is there for what was held"
    board.front.sessions[7] = board.caller
    board.ask(adds=[request(2)], queries=[common.Query(query_id=1, kind="cache_statistics")])
    board.front._close(board.caller)
    assert board.sent[-1] == CloseSession(7)
    assert replica.num_live == 0
    board.front.replica_answer(replica, QueryAnswer(7, 1, b"{}"))  # of a question nobody asks


def test_of_a_lost_replica_only_what_it_computed_is_to_blame() -> None:
    board = Board()
    lost, other = board.replica(1), board.replica(2)
    board.ask(adds=[request(1)])
    board.ask(adds=[request(2)])
    board.ask(adds=[request(3)])
    assert [board.caller.slots[slot] for slot in (1, 2, 3)] == [lost, other, lost]
    del board.fleet.replicas[1]
    board.front.replica_lost(lost, ReplicaLost("it ended", ((7, 3), (8, 1))))
    ends, _ = board.told()
    assert {end.slot: end.error.code for end in ends} == {1: "replica_left", 3: "replica_lost"}
    assert [*board.caller.slots] == [2]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_question_is_answered_without_the_replica_that_is_lost(is_first: bool) -> None:
    board = Board()
    stays, goes = board.replica(1), board.replica(2)
    board.ask(queries=[common.Query(query_id=4, kind="cache_statistics")])
    assert [type(message) for message in board.sent] == [Query, Query]
    if is_first:
        board.front.replica_answer(stays, QueryAnswer(7, 4, b'{"replicas": [{"free": 1}]}'))
        assert board.told() == ([], [])
    board.front.replica_lost(goes, ReplicaLost("it ended"))
    if not is_first:
        assert board.told() == ([], [])
        board.front.replica_answer(stays, QueryAnswer(7, 4, b'{"replicas": [{"free": 1}]}'))
    (answer,) = board.told()[1]
    assert answer.body_json == b'{"replicas":[{"replica":1,"free":1}]}'


async def drained(board: Board, timeout_s: float) -> asyncio.Task[None]:
    task = asyncio.create_task(board.front.drain(timeout_s))
    await asyncio.sleep(0)
    return task


async def test_who_leaves_takes_nothing_new_and_waits_for_what_it_has() -> None:
    board = Board()
    replica = board.replica()
    board.ask(adds=[request(1)])
    task = await drained(board, 60)
    assert board.front.state().reasons == ["the engine is shutting down"]
    board.ask(adds=[request(2)])
    assert [add.slot for add in board.sent if isinstance(add, Add)] == [1]
    assert [*board.caller.slots] == [1] and not task.done()
    (output,) = board.caller._outbox._pending
    (end,) = output.finishes
    assert (end.slot, end.error_kind, end.error_code) == (2, "Unavailable", "replica_left")
    ended(replica, board, 1)
    await task


async def test_who_leaves_waits_no_longer_than_it_may() -> None:
    board = Board()
    board.replica()
    board.ask(adds=[request(1)])
    task = await drained(board, 5)
    board.now = 5.0
    await task
    board.ask(aborts=[1])
    assert board.sent[-1] == Abort(7, 1)
