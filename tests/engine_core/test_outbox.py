"""A slow caller gets the same tokens in fewer messages."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine_core.outbox import MAX_PENDING, Outbox
from engine_core.publish import step_output
from engine_core.scheduling.sequence import TokenEvent
from protos.engine_pb2 import TokenBatch
from protos.worker import Bulk, Finished, Logprobs, Progress, SessionOutput


def output(*events: TokenEvent) -> SessionOutput:
    (session,) = step_output(events).sessions
    return session


def entries(batch: TokenBatch) -> list[tuple[int, int, list[int]]]:
    """Return (slot, offset, tokens) of each entry."""
    slots, offsets = array("I", batch.slots), array("I", batch.token_offsets)
    counts = array("I", batch.counts) or array("I", [1]) * len(slots)
    ids = iter(array("I", batch.token_ids))
    return [
        (slot, offset, [next(ids) for _ in range(count)])
        for slot, count, offset in zip(slots, counts, offsets, strict=True)
    ]


def test_one_step_passes_untouched() -> None:
    outbox = Outbox()
    step = output(TokenEvent(1, 4, 0, (9,)), TokenEvent(1, 6, 3, (8,)))
    outbox.put(step)
    (reply,) = outbox.take()
    batch = reply.batch
    assert batch.slots == step.slots
    assert batch.counts == b""
    assert outbox.take() == []


def test_bulks_come_before_the_batch_that_may_end_their_slot() -> None:
    outbox = Outbox()
    end = Finished(4, 1, 3, 0, 0, 0.0, 0.0, 0.0, 0)
    told = Logprobs(5, 1, (9, 8), (-0.5, -1.0))
    outbox.put(output(TokenEvent(1, 5, 0, (), bulks=(Bulk(5, (told,)),))))
    outbox.put(output(TokenEvent(1, 6, 0, (), progress=Progress(6, 90, 16, 32))))
    outbox.put(output(TokenEvent(1, 4, 0, (), bulks=(Bulk(4, embedding=b"1234"),))))
    outbox.put(output(TokenEvent(1, 4, 0, (), end)))
    prompt, embedded, last = outbox.take()
    (row,) = prompt.bulk.prompt_logprobs.tokens
    assert (prompt.bulk.slot, row.slot, row.index, list(row.token_ids)) == (5, 5, 1, [9, 8])
    assert (embedded.bulk.slot, embedded.bulk.embedding) == (4, b"1234")
    (far,) = last.batch.progress
    assert (far.slot, far.num_total, far.num_cached, far.num_computed) == (6, 90, 16, 32)
    assert [finish.slot for finish in last.batch.finishes] == [4]


def test_finishes_and_logprobs_survive_a_merge() -> None:
    outbox = Outbox()
    end = Finished(4, 2, 1, 0, 2, 0.0, 0.0, 0.0, 0)
    row = Logprobs(4, 0, (9,), (-0.5,))
    outbox.put(output(TokenEvent(1, 4, 0, (9,), None, (row,))))
    outbox.put(output(TokenEvent(1, 4, 1, (8,), end)))
    (reply,) = outbox.take()
    batch = reply.batch
    assert entries(batch) == [(4, 0, [9, 8])]
    assert [finish.slot for finish in batch.finishes] == [4]
    assert batch.logprobs[0].logprobs == [-0.5]


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2))), max_size=200))
def test_a_merge_keeps_every_token_in_order(steps: list[list[tuple[int, int]]]) -> None:
    outbox, sent, fresh = Outbox(), dict[int, list[int]](), iter(range(10**6))
    for step in steps:
        events = []
        for slot, count in dict(step).items():
            tokens = sent.setdefault(slot, [])
            new = tuple(next(fresh) for _ in range(count))
            events.append(TokenEvent(1, slot, len(tokens), new))
            tokens += new
        if events:
            outbox.put(output(*events))
            assert len(outbox._pending) < MAX_PENDING
    got = {slot: ids for reply in outbox.take() for slot, _, ids in entries(reply.batch)}
    assert got == {slot: tokens for slot, tokens in sent.items() if tokens}
