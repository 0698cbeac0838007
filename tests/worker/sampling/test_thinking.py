"""A budget of thoughts: which token is forced, and when."""

from __future__ import annotations

import numpy as np
import pytest

from protos.columns import pack
from protos.common_pb2 import ThinkingBudget as Asked
from tests.worker.sampling.rows import row, some_logits
from worker.errors import RowError
from worker.sampler import Sampler
from worker.sampling.thinking import ThinkingBudget

HEAD = 11
"""A token that ends as the end tag begins: `.</`."""


def forced(output: list[int], most: int, end: list[int], begin: list[int]) -> list[int]:
    """Return what is forced after each of the first tokens of `output`, 0 = nothing."""
    tags = {"begin": pack(begin), "end": pack(end), "end_heads": pack([HEAD])}
    budget = ThinkingBudget(Asked(max_tokens=most, **tags))
    found = []
    for length in range(len(output) + 1):
        ids = budget.forced(np.array(output[:length], np.int32))
        found.append(0 if ids is None else int(ids[0]))
    return found


@pytest.mark.parametrize(
    ("output", "most", "end", "begin", "expected"),
    [
        ([1, 2, 3, 9, 4], 3, [9], [], [0, 0, 0, 9, 0, 0]),
        ([9, 4], 0, [9], [], [9, 0, 0]),
        ([1, 9, 2, 3, 4], 3, [9], [], [0] * 6),  # it ended by itself
        ([7, 1, 2, 9, 4], 2, [9], [7], [0, 0, 0, 9, 0, 0]),  # the begin tag does not count
        ([7, 9, 4], 0, [9], [7], [0, 9, 0, 0]),
        ([1, 2, 3, 4], 2, [9], [7], [0] * 5),  # an answer without a thought
        ([1, 2, 9, 8, 4], 2, [9, 8], [], [0, 0, 9, 8, 0, 0]),
        ([1, 9, 8, 4], 2, [9, 8], [], [0, 0, 8, 0, 0]),  # begun by itself
        ([1, 9, 9, 8, 4], 3, [9, 8], [], [0, 0, 0, 8, 0, 0]),
        ([9, 1, 9, 8, 4], 1, [9, 8], [], [0, 8, 9, 8, 0, 0]),  # it was not obeyed: it insists
        ([1, 9, 8, 6, 4, 4], 4, [9, 8, 5], [], [0] * 7),  # ended by a token that holds newlines too
        ([1, 9, 8, 5, 4], 3, [9, 8, 5], [], [0, 0, 0, 5, 0, 0]),
        ([1, HEAD, 8, 6, 4], 4, [9, 8, 5], [], [0] * 6),  # ended by a tag in one token with a stop
        ([1, HEAD, 8, 5, 4], 2, [9, 8, 5], [], [0, 0, 8, 5, 0, 0]),
        ([HEAD, 4, 9, 8, 5, 4], 1, [9, 8, 5], [], [0, 8, 9, 8, 5, 0, 0]),
        ([7, 2, 3, 9, 8, 5], 0, [9, 8, 5], [7, 2, 3], [0, 0, 0, 9, 8, 5, 0]),
        ([7, 2, 6, 1, 9, 8, 5, 4], 1, [9, 8, 5], [7, 2, 3], [0, 0, 0, 0, 9, 8, 5, 0, 0]),
    ],
)
def test_the_end_is_forced_once_the_budget_is_spent(
    output: list[int], most: int, end: list[int], begin: list[int], expected: list[int]
) -> None:
    assert forced(output, most, end, begin) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_draws_what_is_forced(temperature: float) -> None:
    asked = Asked(max_tokens=2, end=pack([5]))
    drawn, free = [], []
    for target, thinking in ((drawn, asked), (free, None)):
        one = row(temperature=temperature, seed=3, thinking=thinking)
        for step in range(5):
            logits = some_logits(1, seed=step)
            logits[0, 5] = -30
            (token,) = Sampler(24).launch(logits, [one]).drawn()
            one.append(token.token_id)
            target.append(token.token_id)
    assert drawn[2] == 5 and 5 not in free
    assert drawn[:2] + drawn[3:] == free[:2] + free[3:]  # no other token is another one


def test_a_tag_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(RowError, match="thinking for token 99"):
        row(thinking=Asked(max_tokens=2, end=pack([99])))
