"""Row gather: out[t, :] = table[token_ids[t], :]. Also takes the rows that want logits."""

from __future__ import annotations

import numpy as np

from worker.errors import KernelError
from worker.kernels.checks import F32, I32, Floats, Ints, require


def embedding_reference(table: Floats, rows: Ints) -> Floats:
    """table: float32 [N, H]; rows: int32 [T], each in 0..N-1; returns float32 [T, H]."""
    require("embedding", "table", table, F32, (None, None))
    require("embedding", "rows", rows, I32, (None,))
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < table.shape[0]:
        raise KernelError(f"embedding: rows outside 0..{table.shape[0] - 1}")
    out: Floats = np.take(table, rows, axis=0)
    return out
