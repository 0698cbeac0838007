"""Batch: the contiguous inputs of one pass, as every backend takes them.

Knows tokens, positions, cells and block tables. Knows neither model nor backend nor rows.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from worker.kernels.checks import Ints

SHORT_RUN = 8
"""A row with no more new tokens is computed by parts of its keys, on a GPU."""


class PassLimits(NamedTuple):
    """The most that one pass computes, each at least 1."""

    max_tokens: int
    max_rows: int
    max_logits: int
    """Positions with logits: a vocabulary's worth of float32 each."""
    max_keys: int = sys.maxsize
    """Keys that the tokens of rows with at most SHORT_RUN new ones look at, as a sum: a GPU keeps
    parts of each, also of keys that rows share. A row that is more by itself runs alone."""


class Workspace(NamedTuple):
    """What a backend may write to while it computes passes within `limits`."""

    limits: PassLimits
    memory: np.ndarray[Any, np.dtype[np.uint8]]


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
