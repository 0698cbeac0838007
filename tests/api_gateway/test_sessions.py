from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import api_gateway.job
from api_gateway import clients, sessions
from api_gateway.asgi import Call, Message
from api_gateway.job import Job
from api_gateway.link import Link
from api_gateway.sessions import Choice, Demux, Mailbox
from api_gateway.sse import Stream
from api_gateway.watch import CANCELLED, IDLE, Vigil, Watch
from protos.common_pb2 import STOPPED, Finish
from protos.tokenizer_pb2 import Started, TextBatch, TextLogprobs, TextRequest
from tests.support.fake_tokenizer import column


def entry(slot: int, offset: int, text: str, first: int, *ids: int) -> TextBatch:
    return TextBatch(
        slots=column(slot), text_offsets=column(offset), texts=[text],
        counts=column(len(ids)), token_offsets=column(first), token_ids=column(*ids),
    )  # fmt: skip


@given(st.lists(st.text(max_size=3), min_size=1, max_size=8), st.data())
def test_whatever_comes_again_is_dropped(texts: list[str], data: st.DataObject) -> None:
    demux, choice = Demux(), Choice(Mailbox())
    slot = demux.add([choice])
    shown = ""
    for index in range(len(texts)):
        for again in range(data.draw(st.integers(0, index)), index + 1):
            offset = len("".join(texts[:again]).encode())
            assert demux.deliver(entry(slot, offset, texts[again], again, 100 + again)) == []
        shown += choice.take_text()
    assert shown == "".join(texts)
    assert choice.token_ids == column(*range(100, 100 + len(texts)))


async def test_a_replay_is_as_old_as_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time until its first token counts, the time until its last does not."""
    now_s = 100.0
    for module in (sessions, api_gateway.job, clients):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    job, demux, router = Job([TextRequest()]), Demux(), clients.TextClients("nowhere:1")
    now_s += 1
    ((request, choices),) = job.next_requests()
    assert request.limits.waited_ms == 1000
    slot = demux.add(choices)
    now_s += 2
    demux.deliver(entry(slot, 0, "a", 0, 5))
    now_s += 50
    demux.deliver(entry(slot, 1, "b", 1, 6))
    router._replay(job, choices)
    now_s += 4
    assert job.replay_of(choices[0]).limits.waited_ms == 7000
    router.release(job)


async def test_to_wait_for_prompts_of_the_same_request_makes_no_prompt_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the end of a long list of a low priority would go before all others."""
    now_s = 100.0
    for module in (sessions, api_gateway.job):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(api_gateway.job, "PROMPTS_AT_ONCE", 1)
    job = Job([TextRequest(), TextRequest()])
    now_s += 2
    ((request, choices),) = job.next_requests()
    assert request.limits.waited_ms == 2000
    now_s += 300
    choices[0].end(Finish(reason=STOPPED))
    ((request, choices),) = job.next_requests()
    assert request.limits.waited_ms == 0
    now_s += 1
    assert job.replay_of(choices[0]).limits.waited_ms == 1000


@pytest.mark.parametrize("batch", [entry(1, 2, "x", 0, 5), entry(1, 0, "x", 1, 5)])
def test_a_gap_takes_the_choice_out(batch: TextBatch) -> None:
    demux, choice = Demux(), Choice(Mailbox())
    demux.add([choice])
    assert demux.deliver(batch) == [choice]
    assert demux.choices == {} and choice.texts == [] and not choice.token_ids


@pytest.mark.parametrize(
    "batch",
    [
        TextBatch(slots=column(1), texts=["x"]),
        TextBatch(slots=b"\1\2\3"),
        TextBatch(token_ids=column(1)),
    ],
)
def test_ragged_columns_are_an_error(batch: TextBatch) -> None:
    with pytest.raises((ValueError, TypeError)):
        Demux().deliver(batch)


def test_slots_are_never_used_twice() -> None:
    demux = Demux()
    pair = [Choice(Mailbox()), Choice(Mailbox())]
    assert demux.add(pair) == 1 and [choice.slot for choice in pair] == [1, 2]
    assert demux.remove(pair[0]) and not demux.remove(pair[0])
    assert demux.add([Choice(Mailbox())]) == 3


async def test_one_waking_brings_all_news_of_a_request() -> None:
    mailbox, demux = Mailbox(), Demux()
    choices = [Choice(mailbox, number=k, index=k) for k in range(3)]
    demux.add(choices)
    waiting = asyncio.create_task(mailbox.wait())
    await asyncio.sleep(0)
    demux.deliver(TextBatch(started=[Started(slot=1, num_prompt_tokens=9)]))
    assert not waiting.done()
    demux.deliver(entry(2, 0, "a", 0, 1))
    demux.deliver(entry(2, 1, "b", 1, 2))
    demux.deliver(TextBatch(finishes=[Finish(slot=1, reason=STOPPED)]))
    assert await waiting == [choices[1], choices[0]]
    assert choices[1].take_text() == "ab"
    assert choices[0].finish is not None and choices[0].finish.num_prompt_tokens == 9
    mailbox.ring("alarm")
    assert await mailbox.wait() == [] and mailbox.alarm == "alarm"


async def test_news_for_a_consumer_that_was_cut_off_break_nobody_elses_stream() -> None:
    mailbox = Mailbox()
    choice = Choice(mailbox)
    consumer = asyncio.create_task(mailbox.wait())
    await asyncio.sleep(0)
    consumer.cancel()  # as of a client that takes nothing; news come before it has noticed
    mailbox.post(choice)
    mailbox.ring(CANCELLED)
    await asyncio.gather(consumer, return_exceptions=True)
    assert consumer.cancelled() and await mailbox.wait() == []


def test_logprobs_that_come_again_are_dropped() -> None:
    demux, choice = Demux(), Choice(Mailbox())
    slot = demux.add([choice])
    for indexes in ((0, 1), (1, 2), (0, 3)):
        rows = [TextLogprobs(slot=slot, index=index) for index in indexes]
        demux.deliver(TextBatch(logprobs=rows))
    assert [row.index for row in choice.take_logprobs()] == [0, 1, 2, 3]


async def test_an_end_is_heard_whatever_rang_in_the_same_turn() -> None:
    """A request that waits for a tokenizer has no second event that would end it."""
    watch, job = Watch(0.0, 30.0), Job([])
    watch.add(Vigil(job, None))
    watch.tick(time.monotonic())
    assert job.mailbox.alarm == IDLE
    job.mailbox.ring(CANCELLED)
    watch.tick(time.monotonic() + 1)
    assert job.mailbox.alarm == CANCELLED


def test_a_replay_on_the_same_stream_is_paused_again() -> None:
    paused = []

    def pause(choices: list[Choice], is_paused: bool) -> None:
        paused.append([choice.slot for choice in choices])

    job, demux = Job([TextRequest()]), Demux()
    job.link = cast(Link, SimpleNamespace(pause=pause))
    vigil = Vigil(job, None)
    demux.add(job.choices)
    for _ in range(2):
        vigil.pause()
    demux.remove(job.choices[0])
    demux.add(job.choices)
    vigil.pause()
    assert paused == [[1], [2]]


async def test_a_send_that_is_over_waits_no_more() -> None:
    """Else no keep-alive would follow it, no deadline be kept, and what comes would be paused."""
    waiting: list[float | None] = []

    async def send(message: Message) -> None:
        waiting.append(vigil.sending_since_s)

    vigil = Vigil(Job([TextRequest()]), None)
    call = Call({"method": "POST", "path": "/", "headers": []}, MagicMock(), send)
    stream = Stream(call, vigil, MagicMock())
    for _ in range(2):
        before, vigil.sent_s = time.monotonic(), 0.0
        await stream.send(b"x")
        assert vigil.sending_since_s is None and vigil.sent_s >= before
    assert len(waiting) == 3 and None not in waiting
    watch = Watch(keep_alive_s=1.0, slow_client_timeout_s=0.0)
    watch.add(vigil)
    watch.tick(time.monotonic() + 2.0)
    assert vigil.job.mailbox.alarm == IDLE
