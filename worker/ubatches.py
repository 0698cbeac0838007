"""Ubatches: a plan that is too large for one pass, cut into passes that run in turn.

A row's result depends on its own tokens only, so no cut changes a bit: rows may be parted, and a
prompt's tokens as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worker.batch import PassLimits
from worker.gather import Work


def ubatches(work: Iterable[Work], limits: PassLimits) -> Iterator[list[Work]]:
    """Yield the passes, none empty; a row must have been advanced before the next is asked for."""
    whole = list(work)
    if (
        0 < len(whole) <= limits.max_rows
        and sum([item.num_tokens for item in whole]) <= limits.max_tokens
        and sum([item.num_logits for item in whole]) <= limits.max_logits
    ):
        yield whole  # as nearly always
        return
    batch: list[Work] = []
    num_tokens = num_logits = 0
    for row, left in whole:
        while left:
            count = _fitting(Work(row, left), limits.max_tokens - num_tokens,
                             limits.max_logits - num_logits)  # fmt: skip
            if not count or len(batch) == limits.max_rows:
                yield batch
                batch, num_tokens, num_logits = [], 0, 0
                continue
            piece = Work(row, count)
            batch.append(piece)
            num_tokens, num_logits = num_tokens + count, num_logits + piece.num_logits
            left -= count
            if left:  # the rest must find the row advanced
                yield batch
                batch, num_tokens, num_logits = [], 0, 0
    if batch:
        yield batch


def _fitting(item: Work, max_tokens: int, max_logits: int) -> int:
    """Return how many tokens of `item` fit."""
    start = item.row.num_computed
    without_logits = max(0, item.row.logits_from - start)
    return min(item.num_tokens, max_tokens, without_logits + max_logits)
