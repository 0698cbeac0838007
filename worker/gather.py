"""Inputs: a batch, gathered from rows into memory that is always the same.

Knows tokens, positions, cells and block tables. Knows neither model nor backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worker.arena import Arena, Piece
from worker.batch import Batch, PassLimits, Workspace
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


def input_pieces(
    limits: PassLimits, num_positions: int, block_size: int, workspace_bytes: int = 0
) -> list[Piece]:
    """Return what `Inputs` takes for sequences of at most `num_positions` tokens."""
    width = -(-num_positions // block_size)
    lengths = (limits.max_tokens,) * 4 + (limits.max_rows + 1, limits.max_rows * width)
    narrow = [Piece((length,), np.int32) for length in (*lengths, limits.max_logits)]
    ramp = max(num_positions, limits.max_tokens)
    wide = [Piece((limits.max_tokens,), np.int64), Piece((ramp,), np.int32)]
    return [*narrow, *wide, Piece((workspace_bytes,), np.uint8)]


class Inputs:
    """Room for the inputs of the largest pass. A batch is good until the next one is gathered."""

    def __init__(
        self,
        limits: PassLimits,
        num_positions: int,
        block_size: int,
        arena: Arena,
        workspace_bytes: int = 0,
    ) -> None:
        """`workspace_bytes` is what the backend asks for; 0 = it helps itself."""
        self.limits = limits
        self.block_size = block_size
        self.num_positions = num_positions
        pieces = input_pieces(limits, num_positions, block_size, workspace_bytes)
        taken = [arena.take("workspace", piece) for piece in pieces]
        self._token_ids, self._positions, self._cells, self._state_rows, *rest = taken
        self._starts, self._tables, self._logit_rows, self._places, self._ramp, room = rest
        self.workspace = Workspace(limits, room) if workspace_bytes else None
        self._ramp[:] = np.arange(len(self._ramp))

    def gather(self, work: Sequence[Work]) -> Batch:
        """Gather the inputs of `work`: not empty, every row once, within the limits."""
        size = self.block_size
        ends = [item.row.num_computed + item.num_tokens for item in work]
        width = -(-max(ends) // size)
        tables = self._tables[: len(work) * width].reshape(len(work), width)
        stop = num_logits = num_states = 0
        for i, ((row, count), end) in enumerate(zip(work, ends, strict=True)):
            start, stop = stop, stop + count
            self._token_ids[start:stop] = row.span(end - count, end)
            self._positions[start:stop] = self._ramp[end - count : end]
            self._places[start:stop] = i * width
            self._starts[i + 1] = stop
            num_blocks = -(-end // size)
            tables[i, :num_blocks] = row.blocks[:num_blocks]
            tables[i, num_blocks:] = 0
            if wanted := work[i].num_logits:
                first, num_logits = num_logits, num_logits + wanted
                self._logit_rows[first:num_logits] = self._ramp[stop - wanted : stop]
            if wanted := work[i].num_states:
                first, num_states = num_states, num_states + wanted
                self._state_rows[first:num_states] = self._ramp[stop - wanted : stop]
        self._find_cells(stop)
        return Batch(
            token_ids=self._token_ids[:stop],
            positions=self._positions[:stop],
            cells=self._cells[:stop],
            query_starts=self._starts[: len(work) + 1],
            block_tables=tables,
            logit_rows=self._logit_rows[:num_logits],
            state_rows=self._state_rows[:num_states],
            block_size=size,
        )

    def _find_cells(self, count: int) -> None:
        """Fill the first `count` cells; their places in the tables are known up to the block."""
        positions, cells, places = (
            array[:count] for array in (self._positions, self._cells, self._places)
        )
        np.floor_divide(positions, self.block_size, out=cells)
        places += cells
        np.take(self._tables, places, out=cells, mode="clip")  # "raise" would buffer the output
        cells *= self.block_size
        np.remainder(positions, self.block_size, out=places)
        np.add(cells, places, out=cells, casting="same_kind")
