"""Weights as a GPU takes them, against the CPU's packer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.operators import backend
from worker.backends.cuda_weights import quantized
from worker.errors import NotFinite
from worker.kernels.packed import PANEL, Format


def test_int8_is_the_cpus_int8() -> None:
    """The same steps and the same scales, bit for bit."""
    rng = np.random.default_rng(3)
    weight = (rng.standard_normal((43, 416)) * np.exp(rng.normal(size=(43, 1)))).astype(np.float32)
    weight[5], weight[6] = 0, 1e-35
    weight[7, :4] = 127, 0.5, 1.5, -2.5
    packed = backend(weights=Format.INT8).pack_linear([weight])
    panels = packed.weight.reshape(-1, packed.shape.padded_inputs // 4, PANEL, 4)
    rows = panels.transpose(0, 2, 1, 3).reshape(-1, packed.shape.padded_inputs)
    steps, scale = quantized(weight)
    np.testing.assert_array_equal(steps, rows[:43, :416].astype(np.int16) - 128)
    np.testing.assert_array_equal(scale, packed.scales.view(np.float32)[:43])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_what_is_not_finite_is_refused_as_on_the_cpu(value: float) -> None:
    weight = np.ones((20, 64), np.float32)
    weight[18, 40] = value
    with pytest.raises(NotFinite):
        quantized(weight)
    for form in (Format.INT8, Format.INT4):
        with pytest.raises(NotFinite):
            backend(weights=form).pack_linear([weight])
