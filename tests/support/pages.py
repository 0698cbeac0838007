"""Pages of plain keys and values, as the compiled kernels lay them inside a block."""

from __future__ import annotations

import numpy as np

from worker.kernels.pages import Pages, key_order
from worker.kv_cache import LayerPages

VALUE_RUN = 32
"""Outputs of bfloat16 whose halves stand side by side."""


def laid(keys: Pages, values: Pages) -> LayerPages:
    """Return copies of [num_blocks, block_size, kv_heads, head_dim] in the kernels' order."""
    return LayerPages(laid_keys(keys), laid_values(values))


def laid_keys(keys: Pages) -> Pages:
    out = np.empty_like(keys)
    places = key_order(out)
    places[...] = keys.reshape(places.shape)
    return out


def laid_values(values: Pages) -> Pages:
    rows = values.transpose(0, 2, 1, 3).copy()
    whole = rows.shape[3] // VALUE_RUN * VALUE_RUN if values.dtype == np.uint16 else 0
    halves = rows[..., :whole].reshape(*rows.shape[:3], -1, 2, VALUE_RUN // 2)
    rows[..., :whole] = halves.swapaxes(4, 5).reshape(*rows.shape[:3], whole)
    return rows.reshape(values.shape)
