"""Joined batches say exactly what the batches said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protos.common_pb2 import Finish, PromptProgress
from protos.tokenizer_pb2 import Started, TextBatch, TextLogprobs
from tokenizer_service.reasoning import Segment
from tokenizer_service.step_text import SessionText, entries, merged

STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.text("aé", max_size=3), st.integers(0, 3))), max_size=6
)
Said = dict[int, tuple[str, list[int]]]


def batches_of(steps: list[list[tuple[int, str, int]]]) -> list[TextBatch]:
    """Build contiguous batches: each slot's offsets go on where its last entry ended."""
    text_at, token_at, batches = dict[int, int](), dict[int, int](), []
    for step in steps:
        columns = SessionText()
        for slot, text, count in step:
            first = token_at.get(slot, 0)
            ids = list(range(first, first + count))
            columns.add(slot, text_at.get(slot, 0), text, first, ids)
            text_at[slot] = text_at.get(slot, 0) + len(text.encode())
            token_at[slot] = first + count
        batches.append(columns.message())
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


def test_sparse_rows_are_kept_in_order() -> None:
    first = TextBatch(started=[Started(slot=1)], logprobs=[TextLogprobs(slot=1)])
    second = TextBatch(finishes=[Finish(slot=1)], logprobs=[TextLogprobs(slot=1, index=1)])
    joined = merged([first, second])
    assert [row.index for row in joined.logprobs] == [0, 1]
    assert len(joined.started) == len(joined.finishes) == 1


def test_one_batch_is_itself() -> None:
    only = TextBatch(texts=["a"])
    assert merged([only]) is only


def test_text_without_tokens_joins_the_slots_entry() -> None:
    columns = SessionText()
    columns.add(1, 0, "a", 0, [7])
    columns.append(1, 1, "b", 1)
    columns.append(2, 5, "c", 3)
    assert said_texts(columns) == [(1, "ab"), (2, "c")]


def test_channels_of_a_slot_stay_apart_and_in_order() -> None:
    batches, at = [], 0
    for channel, text in [(1, "a"), (1, "b"), (0, "c"), (0, "d")]:
        columns = SessionText()
        columns.add(2, at, "x", at, [at])
        columns.add_segments(1, [Segment(channel, at, text, 1)], at, [at])
        batches.append(columns.message())
        at += 1
    joined = merged(batches)
    rows = [(row.slot, row.channel, row.texts, row.token_ids) for row in entries(joined)]
    assert rows == [(2, 0, ["xxxx"], [0, 1, 2, 3]), (1, 1, ["ab"], [0, 1]), (1, 0, ["cd"], [2, 3])]
    assert not merged(batches[2:]).channels
    said([joined])


def test_of_a_prompts_progress_the_last_word_is_kept() -> None:
    batches = [
        TextBatch(progress=[PromptProgress(slot=slot, num_computed=n)])
        for slot, n in [(1, 10), (2, 5), (1, 20)]
    ]
    told = [(row.slot, row.num_computed) for row in merged(batches).progress]
    assert told == [(1, 20), (2, 5)]


def said_texts(columns: SessionText) -> list[tuple[int, str]]:
    return [(row.slot, "".join(row.texts)) for row in entries(columns.message())]
