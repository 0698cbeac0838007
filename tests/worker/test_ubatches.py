"""Ubatches: how a plan is cut, and that no cut changes a bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.worker.plans import generate, sampling, start
from worker import build
from worker.batch import PassLimits
from worker.build import LoadedModel
from worker.gather import Work
from worker.rows import Row
from worker.ubatches import ubatches

TEMPERED = sampling(temperature=1.0, seed=77, top_k=20)
PROMPTS = {7: [3] * 20, 1: list(range(5, 40)), 4: [9, 8, 7], 5: [1]}


def work(*lengths: int) -> list[Work]:
    return [
        Work(Row(start(i, [1] * length, range(9)), 96), length) for i, length in enumerate(lengths)
    ]


def cut(items: list[Work], limits: PassLimits) -> list[list[tuple[int, int]]]:
    found = []
    for batch in ubatches(items, limits):
        found.append([(item.row.seq_id, item.num_tokens) for item in batch])
        for item in batch:
            item.row.num_computed += item.num_tokens
    return found


def test_tokens_are_dealt_in_order_and_a_row_stands_once_in_a_pass() -> None:
    assert cut(work(5, 2, 4), PassLimits(100, 9, 100)) == [[(0, 5), (1, 2), (2, 4)]]
    cuts = cut(work(5, 2, 4), PassLimits(3, 9, 100))
    assert cuts == [[(0, 3)], [(0, 2), (1, 1)], [(1, 1), (2, 2)], [(2, 2)]]
    assert cut(work(5, 1), PassLimits(1, 9, 1)) == [[(0, 1)]] * 5 + [[(1, 1)]]
    assert cut([], PassLimits(3, 9, 3)) == []


def test_rows_are_dealt_as_well() -> None:
    assert cut(work(3, 2, 4), PassLimits(100, 2, 100)) == [[(0, 3), (1, 2)], [(2, 4)]]


def test_logits_are_dealt_as_well() -> None:
    assert cut(work(1, 1, 1), PassLimits(100, 9, 2)) == [[(0, 1), (1, 1)], [(2, 1)]]
    assert cut(work(4, 3), PassLimits(100, 9, 1)) == [[(0, 4), (1, 2)], [(1, 1)]]


def test_keys_of_short_runs_are_dealt_as_well() -> None:
    def decoding(*ends: int) -> list[Work]:
        rows = [Row(start(i, [1] * end, range(9), 1), 96) for i, end in enumerate(ends)]
        for row, end in zip(rows, ends, strict=True):
            row.num_computed = end - 1
        return [Work(row, 1) for row in rows]

    limits = PassLimits(100, 9, 100, max_keys=45)
    assert cut(decoding(20, 20, 20), limits) == [[(0, 1), (1, 1)], [(2, 1)]]
    assert cut(decoding(90, 46, 1, 44), limits) == [[(0, 1)], [(1, 1)], [(2, 1), (3, 1)]]
    assert cut(work(20, 30, 6), limits) == [[(0, 20), (1, 30), (2, 6)]], "prompts do not count"


@pytest.mark.parametrize("max_logits", [512, 2, 1])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 16, 17, 33])
def test_no_cut_changes_a_bit(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, max_tokens: int, max_logits: int
) -> None:
    """The logprobs of the whole vocabulary say whether two rows of logits are equal."""
    options = {"sampling": TEMPERED, "logprobs": 96}
    expected = generate(tiny.runner(16), PROMPTS, 4, **options)
    monkeypatch.setattr(build, "MAX_LOGITS", max_logits)
    runner = replace(tiny, max_ubatch_tokens=max_tokens).runner(16)
    out = generate(runner, PROMPTS, 4, 19, **options)
    assert out.token_ids == expected.token_ids and out.logprobs == expected.logprobs
