"""Parameter structs and constants that launchers share with the CUDA sources.

Each line here mirrors one there; the kernels' tests fail when they part.
"""

from __future__ import annotations

import numpy as np

SPLIT = 256
"""Keys of a part, in attention."""
UNIT = 64
"""Keys of a stage."""
TILE_ROWS = 16
WARPS = 4
"""Tiles of a block, in prefill attention."""
SHAPE = np.dtype([("num_heads", "i4"), ("num_kv_heads", "i4"), ("page_shift", "i4"),
                  ("max_pages", "i4"), ("window", "i4"), ("scale_log2", "f4")])  # fmt: skip
HEADS = np.dtype([("num_heads", "i4"), ("num_kv_heads", "i4"), ("page_shift", "i4"), ("eps", "f4")])
DRAW = np.dtype([("stream", "u8"), ("inverse_temperature", "f4"), ("min_p_log", "f4"),
                 ("top_p", "f4"), ("top_k", "i4"), ("row", "i4"), ("place", "i4")])  # fmt: skip
EDIT = np.dtype([("row", "i4"), ("token", "i4"), ("repetition", "f4"), ("subtract", "f4"),
                 ("bias", "f4")])  # fmt: skip
TOLD = np.dtype([("row", "i4"), ("place", "i4")])


def linear_prefill_shared_bytes(is_int8: bool) -> int:
    """Return what four stages of weights and tokens take."""
    return 4 * (8 * (512 if is_int8 else 1024) + 128 * 64)


def part_floats(num_kv_heads: int, head_dim: int) -> int:
    """Return what decode attention keeps of SPLIT keys of a tile: sums, a maximum and a total."""
    return num_kv_heads * TILE_ROWS * (head_dim + 2)


def attention_shared_bytes(head_dim: int) -> int:
    """Return what two stages of keys and values take."""
    wide = -(-head_dim // 32) * 32
    return 2 * UNIT * (wide + head_dim + 8) * 2


def prefill_attention_shared_bytes(head_dim: int) -> int:
    """Return what two stages, and the totals of every thread, take."""
    return attention_shared_bytes(head_dim) + head_dim // 2 * WARPS * 32 * 4
