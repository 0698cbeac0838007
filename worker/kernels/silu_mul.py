"""Gated activation: out[t, i] = g / (1 + exp(−g)) * u with g = x[t, i], u = x[t, I + i]."""

from __future__ import annotations

import numpy as np

from worker.errors import KernelError
from worker.kernels.checks import F32, Floats, require


def silu_mul_reference(gate_up: Floats) -> Floats:
    """gate_up: float32 [T, 2I], gate beside up; returns float32 [T, I]."""
    require("silu_mul", "gate_up", gate_up, F32, (None, None))
    if gate_up.shape[1] % 2:
        raise KernelError(
            f"silu_mul: gate_up has {gate_up.shape[1]} columns, expected an even number"
        )
    gate, up = np.split(gate_up, 2, axis=1)
    out: Floats = np.exp(-gate)  # an overflow gives inf, and g / inf the right 0
    out += np.float32(1)
    np.divide(gate, out, out=out)
    out *= up
    return out
