"""How the compiled kernels lay keys and values inside a block; `operands.h` says it for C++.

A block's bytes are those of [block_size, kv_heads, head_dim]; only their order is another. In a
block of one cell it is the same, but for the values of bf16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worker.kernels.checks import Ints

Pages = np.ndarray[Any, Any]
"""[num_blocks, block_size, kv_heads, head_dim], float32 or the bits of bfloat16."""


def key_order(pages: Pages) -> Pages:
    """View keys as [num_blocks, block_size, kv_heads, head_dim / n, n], n inputs side by side."""
    num_blocks, block_size, kv_heads, head_dim = pages.shape
    side = 1 if pages.dtype == np.float32 else 2
    laid = pages.reshape(num_blocks, kv_heads, head_dim // side, block_size, side)
    return laid.transpose(0, 3, 1, 2, 4)


def keys_of(pages: Pages, cells: Ints) -> Pages:
    """Return the keys of `cells` as [cells, kv_heads, head_dim]."""
    block_size, kv_heads, head_dim = pages.shape[1:]
    found: Pages = key_order(pages)[cells // block_size, cells % block_size]
    return found.reshape(len(cells), kv_heads, head_dim)
