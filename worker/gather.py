"""Inputs: a batch, gathered from rows into memory that is always the same.

Knows tokens, positions, cells and block tables. Knows neither model nor backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worker.arena import Arena, Piece
from worker.batch import Batch, PassLimits, Workspace
from worker.kernels.checks import Ints
from worker.rows import Row


class Work(NamedTuple):
    """Compute the `num_tokens` tokens of `row` that follow what is computed."""

    row: Row
    num_tokens: int

    @property
    def num_logits(self) -> int:
        """How many of these tokens, the last ones, want logits."""
        start, wanted = self.row.num_computed, self.row.logits_from
        end = start + self.num_tokens
        return 0 if end <= wanted else end - (wanted if wanted > start else start)

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
        self._shape: tuple[int, ...] = ()
        self._batch_of_shape: Batch

    def gather(self, work: Sequence[Work]) -> Batch:
        """Gather the inputs of `work`: not empty, every row once, within the limits."""
        size = self.block_size
        ends = [row.num_computed + count for row, count in work]
        width = -(-max(ends) // size)
        tables = self._tables[: len(work) * width].reshape(len(work), width)
        singles = [item for item in work if item.num_tokens == item.num_logits == 1]
        if len(singles) == len(work) and all(item.row.pool is None for item in work):
            self._gather_singles(work, ends, tables)
            return self._batch(tables, len(work), len(work), 0)
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
        return self._batch(tables, stop, num_logits, num_states)

    def _gather_singles(self, work: Sequence[Work], ends: Sequence[int], tables: Ints) -> None:
        """Gather rows of one token each that all want logits: most steps are that."""
        count, size = len(work), self.block_size
        lasts = [end - 1 for end in ends]
        self._token_ids[:count] = [
            row.token_at(last) for (row, _), last in zip(work, lasts, strict=True)
        ]
        self._positions[:count] = lasts
        self._starts[1 : count + 1] = self._ramp[1 : count + 1]
        self._logit_rows[:count] = self._ramp[:count]
        tables[:] = 0
        cells = []
        for table, (row, _), last in zip(tables, work, lasts, strict=True):
            block, offset = divmod(last, size)
            table[: block + 1] = row.blocks[: block + 1]
            cells.append(int(table[block]) * size + offset)
        self._cells[:count] = cells

    def _batch(self, tables: Ints, num_tokens: int, num_logits: int, num_states: int) -> Batch:
        """Return the one of the last call while nothing but contents has changed."""
        shape = (*tables.shape, num_tokens, num_logits, num_states)
        if shape != self._shape:
            self._shape = shape
            self._batch_of_shape = self._new_batch(tables, num_tokens, num_logits, num_states)
        return self._batch_of_shape

    def _new_batch(self, tables: Ints, num_tokens: int, num_logits: int, num_states: int) -> Batch:
        return Batch(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            cells=self._cells[:num_tokens],
            query_starts=self._starts[: len(tables) + 1],
            block_tables=tables,
            logit_rows=self._logit_rows[:num_logits],
            state_rows=self._state_rows[:num_states],
            block_size=self.block_size,
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
