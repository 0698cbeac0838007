"""Pooling: embeddings of whole prompts, from the states after the final norm.

`last` is the state of the last token, `mean` that of all of them. The mean is a running float64 sum
token by token, so that no cut into chunks changes a bit. Nothing is drawn for such a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from protos import worker as wire
from worker.errors import RowError
from worker.kernels.checks import Floats

KINDS = ("last", "mean")


class Pool:
    """One embedding in the making; not brought to unit length."""

    def __init__(self, start: wire.SequenceStart) -> None:
        if start.pooling not in KINDS:
            raise RowError(f"pooling is {start.pooling!r}, allowed: {', '.join(KINDS)}")
        if start.pooling == "mean" and start.num_computed:
            raise RowError(
                f"a mean needs every state, {start.num_computed} are said to be computed"
            )
        self._seq_id = start.seq_id
        self._is_mean = start.pooling == "mean"
        self._num_tokens = len(start.token_ids) // 4
        self._num_taken = start.num_computed
        self._sum: np.ndarray[Any, np.dtype[np.float64]] | None = None

    def num_states(self, num_tokens: int) -> int:
        """Return how many of the next `num_tokens`, the last ones, it wants the states of."""
        if self._is_mean:
            return num_tokens
        return int(self._num_taken + num_tokens == self._num_tokens)

    def take(self, num_tokens: int, states: Floats) -> wire.Bulk | None:
        """Advance by `num_tokens`, of which states float32 [num_states, H] are given.

        Returns the embedding when the prompt is at its end; raises RowError when it is not finite.
        """
        self._num_taken += num_tokens
        for state in states.astype(np.float64):
            self._sum = state if self._sum is None else self._sum + state
        if self._num_taken < self._num_tokens or self._sum is None:
            return None
        embedding = self._sum / (self._num_tokens if self._is_mean else 1)
        if not np.all(np.isfinite(embedding)):
            raise RowError("the model's states are not finite")
        return wire.Bulk(self._seq_id, embedding=embedding.astype("<f4").tobytes())
