"""RMS normalisation: out[t, :] = x[t, :] / sqrt(mean(x[t, :]²) + eps) * weight.

The mean is one pairwise sum over a contiguous row, so that its order depends on H alone.
"""

from __future__ import annotations

import numpy as np

from worker.errors import KernelError
from worker.kernels.checks import F32, Floats, require


def rms_norm_reference(x: Floats, weight: Floats, eps: float) -> Floats:
    """x: float32 [T, H]; weight: float32 [H]; returns float32 [T, H]."""
    require("rms_norm", "x", x, F32, (None, None))
    require("rms_norm", "weight", weight, F32, (x.shape[1],))
    mean = np.sum(x * x, axis=-1, keepdims=True) / np.float32(x.shape[1])
    out: Floats = x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight
    return out


def add_rms_norm_reference(
    x: Floats, residual: Floats, weight: Floats, eps: float
) -> tuple[Floats, Floats]:
    """Return (rms_norm(x + residual), x + residual); all float32 [T, H]."""
    require("add_rms_norm", "x", x, F32, (None, None))
    require("add_rms_norm", "residual", residual, F32, x.shape)
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def head_norm_reference(
    qkv: Floats, q_weight: Floats, k_weight: Floats, num_heads: int, eps: float
) -> Floats:
    """Normalise every head of q and k by itself; v stays.

    qkv: float32 [T, (num_heads + 2 kv_heads) * D]; weights: float32 [D]; returns as qkv.
    """
    head_dim = len(q_weight)
    require("head_norm", "qkv", qkv, F32, (None, None))
    require("head_norm", "q_weight", q_weight, F32, (None,))
    require("head_norm", "k_weight", k_weight, F32, (head_dim,))
    num_kv_heads, rest = divmod(qkv.shape[1] // head_dim - num_heads, 2)
    if num_kv_heads < 1 or rest or qkv.shape[1] % head_dim:
        raise KernelError(
            f"head_norm: qkv has {qkv.shape[1]} columns, expected {num_heads} heads of {head_dim} "
            f"and as many of k as of v"
        )
    out = qkv.copy()
    heads = out.reshape(len(qkv), -1, head_dim)
    first = 0
    for count, weight in ((num_heads, q_weight), (num_kv_heads, k_weight)):
        part = np.ascontiguousarray(heads[:, first : first + count]).reshape(-1, head_dim)
        heads[:, first : first + count] = rms_norm_reference(part, weight, eps).reshape(
            -1, count, head_dim
        )
        first += count
    return out
