"""Rotary positions, and the write of keys and values into the paged cache.

A head's halves are pairs: (a, b) → (a cos − b sin, b cos + a sin), angle = position * frequency in
float32, as in the models' training code; sine and cosine are rounded from float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from worker.kernels.checks import F32, I32, Floats, Ints, require, require_places


class Rotary(NamedTuple):
    """Frequencies, float32 [D/2] in radians per position, and the factor of cos and sin."""

    frequencies: Floats
    attention_factor: float


class Rotation(NamedTuple):
    """cos and sin, float32 [T, 1, D/2] each, of one step's positions."""

    cos: Floats
    sin: Floats


def pack_rotary(inverse_frequencies: Sequence[float], attention_factor: float = 1.0) -> Rotary:
    """Round the frequencies to float32."""
    return Rotary(np.array(inverse_frequencies, np.float32), attention_factor)


def rotation(positions: Ints, rotary: Rotary) -> Rotation:
    """positions: int32 [T]."""
    require("rope", "positions", positions, I32, (None,))
    angles = positions.astype(np.float32)[:, None] * rotary.frequencies
    exact = angles.astype(np.float64)[:, None, :]
    factor = np.float32(rotary.attention_factor)
    return Rotation(
        np.cos(exact).astype(np.float32) * factor, np.sin(exact).astype(np.float32) * factor
    )


def rope_reference(heads: Floats, turn: Rotation) -> Floats:
    """heads: float32 [T, num_heads, D], any strides; returns the rotated heads, contiguous."""
    half = heads.shape[2] // 2
    a, b = heads[..., :half], heads[..., half:]
    out = np.empty(heads.shape, np.float32)
    np.subtract(a * turn.cos, b * turn.sin, out=out[..., :half])
    np.add(b * turn.cos, a * turn.sin, out=out[..., half:])
    return out


def store_kv_reference(
    keys: Floats, values: Floats, cells: Ints, cache: tuple[Floats, Floats]
) -> None:
    """Write keys and values [T, kv_heads, D] to cells int32 [T] (block * block_size + offset).

    cache: float32 [num_blocks, block_size, kv_heads, D] twice.
    """
    require("store_kv", "cells", cells, I32, (keys.shape[0],))
    for name, pages in zip(("keys", "values"), cache, strict=True):
        require("store_kv", name, pages, F32, (None, None, *keys.shape[1:]))
    num_cells = cache[0].shape[0] * cache[0].shape[1]
    require_places("store_kv", "cells", cells, num_cells)
    for source, pages in zip((keys, values), cache, strict=True):
        pages.reshape(num_cells, *keys.shape[1:])[cells] = source


def rope_shift_reference(keys: Floats, cells: Ints, delta: int, rotary: Rotary) -> None:
    """Turn the keys of `cells`, int32 [n], by `delta` positions, in place.

    keys: float32 [num_blocks, block_size, kv_heads, D]. Each turn rounds: a key that is turned is
    near the one that would be computed at its new position, and not equal to it.
    """
    require("rope_shift", "keys", keys, F32, (None, None, None, 2 * len(rotary.frequencies)))
    num_cells = keys.shape[0] * keys.shape[1]
    require_places("rope_shift", "cells", cells, num_cells)
    flat = keys.reshape(num_cells, *keys.shape[2:])
    turn = rotation(np.array([delta], np.int32), Rotary(rotary.frequencies, 1.0))
    flat[cells] = rope_reference(flat[cells], turn)
