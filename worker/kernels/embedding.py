"""Row gather: out[t, :] = table[token_ids[t], :]. Also takes the rows that want logits."""

from __future__ import annotations

import numpy as np

from worker.kernels.checks import F32, Floats, Ints, require, require_places


def embedding_reference(table: Floats, rows: Ints) -> Floats:
    """table: float32 [N, H]; rows: int32 [T], each in 0..N-1; returns float32 [T, H]."""
    require("embedding", "table", table, F32, (None, None))
    require_places("embedding", "rows", rows, len(table))
    out: Floats = np.take(table, rows, axis=0)
    return out
