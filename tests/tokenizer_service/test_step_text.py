"""Joined batches say exactly what the batches said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protos.common_pb2 import Finish
from protos.tokenizer_pb2 import Started, TextBatch, TextLogprobs
from tokenizer_service.step_text import SessionText, entries, merged

STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.text("aé", max_size=3), st.integers(0, 3))), max_size=6
)
Said = dict[int, tuple[str, list[int]]]


def batches_of(steps: list[list[tuple[int, str, int]]]) -> list[TextBatch]:
    """Build contiguous batches: each slot's offsets go on where its last entry ended."""
    text_at, token_at, batches = dict[int, int](), dict[int, int](), []
    for step_id, step in enumerate(steps):
        columns = SessionText()
        for slot, text, count in step:
            first = token_at.get(slot, 0)
            ids = list(range(first, first + count))
            columns.add(slot, text_at.get(slot, 0), text, first, ids)
            text_at[slot] = text_at.get(slot, 0) + len(text.encode())
            token_at[slot] = first + count
        batches.append(columns.message(step_id, step_id * 10))
    return batches


def said(batches: list[TextBatch]) -> Said:
    """Read batches as a gateway does, checking both offsets."""
    found: Said = {}
    for row in (row for batch in batches for row in entries(batch)):
        text, ids = found.get(row.slot, ("", []))
        assert row.text_offset == len(text.encode()) and row.token_offset == len(ids)
        found[row.slot] = (text + "".join(row.texts), ids + row.token_ids)
    return found


@given(STEPS.filter(bool))
def test_merging_loses_nothing(steps: list[list[tuple[int, str, int]]]) -> None:
    batches = batches_of(steps)
    before = said(batches)
    joined = merged(batches)
    assert said([joined]) == before
    assert len(joined.texts) == len(before) or len(batches) == 1
    assert joined.step_id == len(batches) - 1


def test_sparse_rows_are_kept_in_order() -> None:
    first = TextBatch(started=[Started(slot=1)], logprobs=[TextLogprobs(slot=1)])
    second = TextBatch(finishes=[Finish(slot=1)], logprobs=[TextLogprobs(slot=1, index=1)])
    joined = merged([first, second])
    assert [row.index for row in joined.logprobs] == [0, 1]
    assert len(joined.started) == len(joined.finishes) == 1


def test_one_batch_is_itself() -> None:
    only = TextBatch(step_id=3)
    assert merged([only]) is only


def test_text_without_tokens_joins_the_slots_entry() -> None:
    columns = SessionText()
    columns.add(1, 0, "a", 0, [7])
    columns.append(1, 1, "b", 1)
    columns.append(2, 5, "c", 3)
    assert said_texts(columns) == [(1, "ab"), (2, "c")]


def said_texts(columns: SessionText) -> list[tuple[int, str]]:
    return [(row.slot, "".join(row.texts)) for row in entries(columns.message())]
