"""The instructions that ceilings are measured with: they run as often as is said, and are right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.case import Case, i32

ROUNDS = 5


def test_products_of_ones(case: Case) -> None:
    out = case.poisoned((2, 256), "f32")
    case.gpu.launch("matrix_rate_mma", (2,), 256, (out, i32(ROUNDS)))
    np.testing.assert_array_equal(case.get(out), np.full((2, 256), 128 * 16 * ROUNDS))


def test_the_widest_instruction_or_nothing(case: Case) -> None:
    out = case.poisoned((2, 256), "f32")
    case.gpu.launch("matrix_rate_wgmma", (2,), 256, (out, i32(ROUNDS)))
    values = case.get(out)
    if np.isnan(values).all() and "sm_90" not in case.gpu.name:
        pytest.skip("this chip has none that is wider")
    np.testing.assert_array_equal(values, np.full((2, 256), 128 * 16 * ROUNDS))
