"""Which link a job gets, how long it waits for one and what a loss does to it, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api_gateway import clients as module
from api_gateway.clients import TextClients
from api_gateway.job import Job
from api_gateway.link import Link
from api_gateway.watch import CANCELLED
from common.errors import Unavailable
from common.peers import Breach
from protos import limits
from protos.columns import pack
from protos.common_pb2 import (
    ERROR,
    STOPPED,
    EngineState,
    Finish,
    Limits,
    ModelInfo,
    SessionOpened,
)
from protos.limits import SLOT_LIMIT
from protos.tokenizer_pb2 import CancelReply, TextBatch, TextMessage, TextRequest
from tests.api_gateway.conftest import until


class Line:
    """A stream that nobody reads."""

    channel = None

    def __init__(self, address: str) -> None:
        self.address = address


class Room:
    """A gateway's clients with the links that a test opens."""

    def __init__(self) -> None:
        self.clients = TextClients("")

    def link(self, address: str, model: str = "m", num_live: int = 0) -> Link:
        opened = SessionOpened(session=3, models=[ModelInfo(id=model, aliases=["alias"])])
        link = Link(Line(address), opened, self.clients._replay)  # type: ignore[arg-type]
        self.clients._links[address] = link
        for _ in range(num_live):
            link.send(*job().next_requests()[0])
            link._adds.clear()
        return link

    def lose(self, link: Link) -> None:
        self.clients._lose(self.clients._links.pop(link.address))


def job(n: int = 1, model: str = "m", tenant: str = "t", request_id: str = "r") -> Job:
    bounds = Limits(n=n, tenant=tenant)
    return Job([TextRequest(model=model, request_id=request_id, prompt="x", limits=bounds)])


def sent(link: Link) -> list[TextRequest]:
    return [request for request, _ in link._adds]


def tell(link: Link, slot: int, first: int, *ids: int) -> None:
    batch = TextBatch(
        slots=pack([slot]), text_offsets=pack([first]), texts=["x" * len(ids)],
        counts=pack([len(ids)]), token_offsets=pack([first]), token_ids=pack(ids),
    )  # fmt: skip
    link._receive(TextMessage(batch=batch))


def finish(link: Link, slot: int) -> None:
    link._receive(TextMessage(batch=TextBatch(finishes=[Finish(slot=slot, reason=STOPPED)])))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(limits, "AFTERMATH_S", 0.0)
    return Room()


async def test_a_job_goes_to_the_least_loaded_that_is_ready_and_serves_it(room: Room) -> None:
    wrong = room.link("a", model="other")
    busy, idle, unready = room.link("b", num_live=2), room.link("c", num_live=1), room.link("d")
    for link in (busy, idle, wrong):
        link._note_state(EngineState(engine="e", ready=True))
    unready._note_state(EngineState(engine="e", ready=False))
    first = job()
    room.clients.submit(first)
    assert first.link is idle and [len(sent(k)) for k in (wrong, busy, idle, unready)] == [
        0,
        0,
        1,
        0,
    ]
    room.clients.release(first)
    assert idle.jobs == {} and idle._aborts == [2] and first.link is None
    room.clients.release(first)
    assert idle._aborts == [2], "freed once"


async def test_who_waits_too_long_is_told_so_and_sent_nowhere(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_TIMEOUT_S", 0.0)
    lost = job(n=2)
    room.clients.submit(lost)
    while lost.unfinished:
        await lost.mailbox.wait()
    ends = [choice.finish for choice in lost.choices]
    assert [(end.reason, end.error.kind, end.error.code) for end in ends if end] == [
        (ERROR, "Unavailable", "no_tokenizer")
    ] * 2
    link = room.link("a")
    room.clients._look_again()
    assert sent(link) == [] and room.clients._retry is None


async def test_who_has_left_meanwhile_is_sent_nowhere(room: Room) -> None:
    gone, stays = job(), job()
    for one in (gone, stays):
        room.clients.submit(one)
    room.clients.release(gone)
    link = room.link("a")
    room.clients._look_again()
    assert link.jobs == {stays: None} and stays.expiry is None


async def test_a_cancel_ends_what_waits_of_this_tenant_and_id_alone(room: Room) -> None:
    mine, others = job(), [job(tenant="u"), job(request_id="s")]
    for one in (mine, *others):
        room.clients.submit(one)
    assert await room.clients.cancel("r", "t") == 1
    assert mine.mailbox.alarm == CANCELLED and {*room.clients._waiting} == {*others}
    assert await room.clients.cancel("r", "t") == 0
    for one in others:
        room.clients.release(one)


class Stub:
    def __init__(self, num: int | None) -> None:
        self.num = num

    async def Cancel(self, request: Any, **options: float) -> CancelReply:
        if self.num is None:
            raise OSError("it hangs")
        return CancelReply(num_cancelled=self.num)


async def test_a_cancel_counts_what_answers_and_fails_when_nobody_does(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs = [Stub(2), Stub(None)]
    monkeypatch.setattr(room.clients, "stubs", lambda: stubs)
    assert await room.clients.cancel("r", "t") == 2
    del stubs[0]
    with pytest.raises(Unavailable):
        await room.clients.cancel("r", "t")
    room.clients.submit(job())
    assert await room.clients.cancel("r", "t") == 1, "the one that waited here"


async def test_a_loss_replays_what_had_not_ended_and_only_that(room: Room) -> None:
    link, lost = room.link("a"), job(n=3)
    room.clients.submit(lost)
    tell(link, 1, 0, 5, 6)
    tell(link, 2, 0, 7)
    finish(link, 2)
    room.lose(link)
    assert lost.link is None and lost.attempt == 1
    other = room.link("b")
    room.clients._look_again()
    one, three = sent(other)
    assert (one.limits.n, one.limits.first_choice, one.attempt) == (1, 0, 1)
    assert one.resumed[0].token_ids == pack([5, 6]) and one.resumed[0].text_bytes == 2
    assert (three.limits.first_choice, three.resumed[0].token_ids) == (2, b"")
    room.clients.release(lost)
    assert sorted(other._aborts) == [1, 2] and link._aborts == []


async def test_what_is_lost_three_times_without_progress_ends(room: Room) -> None:
    lost = job(n=2)
    room.clients.submit(lost)
    for attempt in (1, 2, 3):
        link = room.link("a")
        room.clients._look_again()
        tell(link, 2, 4 * (attempt - 1), *range(4))  # the other choice gets nothing
        room.lose(link)
        assert lost.attempt == attempt
    assert {choice.finish.error.code for choice in lost.choices if choice.finish} == {
        limits.ATTEMPTS_EXHAUSTED
    }
    assert not lost.unfinished and not room.clients._waiting


async def test_what_has_gained_enough_counts_anew(room: Room) -> None:
    lost = job(n=2)
    room.clients.submit(lost)
    for first in range(0, 8 * 4, 8):
        link = room.link("a")
        room.clients._look_again()
        tell(link, 1, first, *range(8))
        room.lose(link)
        assert lost.attempt == 1
    room.clients.release(lost)


async def test_to_have_waited_is_no_attempt_but_passes_full_queues(room: Room) -> None:
    link, lost = room.link("a"), job()
    room.clients.submit(lost)
    link.heard_s = lost.choices[0].sent_s + limits.PROOF_S
    room.lose(link)
    assert (lost.attempt, lost.num_waits) == (1, 1)
    room.clients.release(lost)


async def test_who_may_have_died_with_the_lost_one_gets_nothing_before_it_speaks(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AFTERMATH_S", 60.0)
    link, other, lost = room.link("a"), room.link("b"), job()
    room.clients.submit(lost)
    room.lose(link)
    room.clients._look_again()
    assert sent(other) == []
    lost.heard_after_s = 0.0  # the minute is over
    other._receive(TextMessage(batch=TextBatch()))
    room.clients._look_again()
    assert len(sent(other)) == 1
    room.clients.release(lost)


async def test_a_gateway_that_closes_replays_nothing(room: Room) -> None:
    link, lost = room.link("a"), job()
    room.clients.submit(lost)
    await room.clients.close()
    room.lose(link)
    assert not room.clients._waiting and lost.attempt == 0


async def test_a_gap_is_asked_for_again_on_the_stream_that_stands(room: Room) -> None:
    link, torn = room.link("a"), job(n=2)
    room.clients.submit(torn)
    link._adds.clear()
    tell(link, 1, 3, 9)
    (again,) = sent(link)
    assert (again.limits.first_choice, again.slot, link._aborts) == (0, 3, [1])
    assert torn.link is link and torn.attempt == 1
    tell(link, 1, 0, 4)  # of the slot that is given up
    assert torn.choices[0].token_ids == b""
    room.clients.release(torn)
    assert sorted(link._aborts) == [1, 2, 3]


async def test_only_live_choices_are_paused_and_aborted(room: Room) -> None:
    link, one = room.link("a"), job(n=2)
    room.clients.submit(one)
    finish(link, 1)
    link.pause(one.choices, is_paused=True)
    assert link._pauses == {2: True}
    link.abort(one.choices)
    assert link._aborts == [2]
    link.pause(one.choices, is_paused=True)
    assert link._pauses == {2: True}


async def test_a_good_word_that_is_fresh_counts_before_a_later_bad_one(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    good, bad = room.link("a"), room.link("b")
    good._note_state(EngineState(engine="e", ready=True, fingerprint="f"))
    now[0] += 1.0
    bad._note_state(EngineState(engine="e", ready=False))
    assert room.clients.states()["e"][0].ready and room.clients.fingerprint() == "f"
    assert good.is_ready(now[0], 2.0) and not bad.is_ready(now[0], 2.0)
    now[0] += 60.0
    bad._note_state(EngineState(engine="e", ready=False))
    assert not room.clients.states()["e"][0].ready
    assert not good.is_ready(now[0], 2.0), "an old good word"
    assert room.clients.fingerprint() == "f", "the last there was"


async def test_a_call_goes_to_those_that_serve_the_model(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "stub", lambda channel: channel)
    for address, model in (("a", "other"), ("b", "m"), ("c", "m")):
        room.link(address, model).channel = address
    room.clients._links["c"]._note_state(EngineState(engine="e", ready=True))
    assert room.clients.stubs("m") == ["c", "b"]
    assert sorted(room.clients.stubs()) == ["a", "b", "c"]


async def test_a_deadline_that_has_passed_is_still_one() -> None:
    """0 would be none."""
    late = Job([TextRequest(model="m", limits=Limits(n=1))], deadline_s=1.0)
    ((request, _),) = late.next_requests()
    assert request.limits.deadline_ms == 1


async def test_a_stream_ends_before_its_slots_come_round(room: Room) -> None:
    link = room.link("a")
    link._receive(TextMessage(batch=TextBatch()))
    link.demux.next_slot = SLOT_LIMIT + 1
    with pytest.raises(Breach, match="used up"):
        link._receive(TextMessage(batch=TextBatch()))
    with pytest.raises(Breach, match="unexpected message"):
        link._receive(TextMessage())


async def test_aborts_and_pauses_go_out_behind_what_they_speak_of(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api_gateway.link.MAX_MERGED_BYTES", 1)
    link, one = room.link("a"), job()
    written: list[Any] = []

    async def write(message: Any) -> None:
        written.append(message)

    monkeypatch.setattr(link._stream, "write", write, raising=False)
    room.clients.submit(one)
    room.clients.submit(two := job())
    link.pause(two.choices, is_paused=True)
    room.clients.release(one)
    writer = asyncio.create_task(link._write())
    await until(lambda: len(written) == 2)
    writer.cancel()
    assert [len(message.adds) for message in written] == [1, 1]
    assert [[*message.aborts] for message in written] == [[], [1]]
    assert [[*message.pauses] for message in written] == [[], [2]]
    room.clients.release(two)
