"""RMS normalisation: out[t, :] = x[t, :] / sqrt(mean(x[t, :]²) + eps) * weight.

The mean is one pairwise sum over a contiguous row, so that its order depends on H alone.
"""

from __future__ import annotations

import numpy as np

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
