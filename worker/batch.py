"""Batch: the contiguous inputs of one step, gathered from rows.

Knows tokens, positions, cells and block tables. Knows neither model nor backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worker.kernels.checks import Ints
from worker.rows import Row


class Work(NamedTuple):
    """Compute the `num_tokens` tokens of `row` that follow what is computed."""

    row: Row
    num_tokens: int

    @property
    def num_logits(self) -> int:
        """How many of these tokens, the last ones, want logits."""
        start = self.row.num_computed
        return max(0, start + self.num_tokens - max(start, self.row.logits_from))

    @property
    def num_states(self) -> int:
        """How many of these tokens, the last ones, want their final state."""
        return 0 if self.row.pool is None else self.row.pool.num_states(self.num_tokens)


class Batch(NamedTuple):
    """T tokens of B sequences, one sequence after the other; all arrays int32."""

    token_ids: Ints
    """[T]"""
    positions: Ints
    """[T], consecutive within a sequence."""
    cells: Ints
    """[T]: block * block_size + offset, where the token's keys and values go."""
    query_starts: Ints
    """[B + 1]: sequence b owns tokens query_starts[b] .. query_starts[b + 1]."""
    block_tables: Ints
    """[B, most blocks of any]; unused entries are block 0."""
    logit_rows: Ints
    """[R]: which of the T tokens want logits."""
    state_rows: Ints
    """[S]: which of the T tokens want their state after the final norm."""
    block_size: int
    """Cells of a block."""


def gather(work: Sequence[Work], block_size: int) -> Batch:
    """Gather the inputs of `work`, not empty; every row stands in it once."""
    counts = [item.num_tokens for item in work]
    starts = np.zeros(len(work) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    spans = [slice(w.row.num_computed, w.row.num_computed + w.num_tokens) for w in work]
    positions = np.concatenate([np.arange(s.start, s.stop, dtype=np.int32) for s in spans])
    tables = np.zeros((len(work), max(len(w.row.blocks) for w in work)), np.int32)
    for table, item in zip(tables, work, strict=True):
        table[: len(item.row.blocks)] = item.row.blocks
    owners = np.repeat(np.arange(len(work)), counts)
    blocks = tables[owners, positions // block_size]
    return Batch(
        token_ids=np.concatenate(
            [w.row.span(s.start, s.stop) for w, s in zip(work, spans, strict=True)]
        ),
        positions=positions,
        cells=blocks * np.int32(block_size) + positions % np.int32(block_size),
        query_starts=starts,
        block_tables=tables,
        logit_rows=_tails(starts[1:], [item.num_logits for item in work]),
        state_rows=_tails(starts[1:], [item.num_states for item in work]),
        block_size=block_size,
    )


def _tails(stops: Ints, counts: Sequence[int]) -> Ints:
    """Return the `counts[i]` places before each of `stops`, in order."""
    before = np.cumsum(counts) - counts
    return np.arange(sum(counts), dtype=np.int32) + np.repeat(
        stops - counts - before, counts
    ).astype(np.int32)
