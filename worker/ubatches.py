"""Ubatches: a plan that is too large for one pass, cut into passes that run in turn.

A row's result depends on its own tokens only, so no cut changes a bit: rows may be parted, and a
prompt's tokens as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worker.batch import SHORT_RUN, PassLimits
from worker.gather import Work


def ubatches(work: Iterable[Work], limits: PassLimits) -> Iterator[list[Work]]:
    """Yield the passes, none empty; a row must have been advanced before the next is asked for."""
    whole = list(work)
    if (
        0 < len(whole) <= limits.max_rows
        and sum([item.num_tokens for item in whole]) <= limits.max_tokens
        and sum([item.num_logits for item in whole]) <= limits.max_logits
        and sum([_keys(item) for item in whole]) <= limits.max_keys
    ):
        yield whole  # as nearly always
        return
    batch: list[Work] = []
    num_tokens = num_logits = num_keys = 0
    for row, left in whole:
        while left:
            count = _fitting(Work(row, left), limits.max_tokens - num_tokens,
                             limits.max_logits - num_logits)  # fmt: skip
            piece = Work(row, count)
            keys = _keys(piece)
            is_full = len(batch) == limits.max_rows or num_keys + keys > limits.max_keys
            if not count or (batch and is_full):
                yield batch
                batch, num_tokens, num_logits, num_keys = [], 0, 0, 0
                continue
            batch.append(piece)
            num_tokens, num_logits = num_tokens + count, num_logits + piece.num_logits
            num_keys += keys
            left -= count
            if left:  # the rest must find the row advanced
                yield batch
                batch, num_tokens, num_logits, num_keys = [], 0, 0, 0
    if batch:
        yield batch


def _keys(item: Work) -> int:
    """Return how many keys its tokens look at where that counts."""
    if item.num_tokens > SHORT_RUN:
        return 0
    return item.num_tokens * (item.row.num_computed + item.num_tokens)


def _fitting(item: Work, max_tokens: int, max_logits: int) -> int:
    """Return how many tokens of `item` fit."""
    start = item.row.num_computed
    without_logits = max(0, item.row.logits_from - start)
    return min(item.num_tokens, max_tokens, without_logits + max_logits)
