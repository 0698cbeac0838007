"""The level that is found, against what the system says of its processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.operators import library
from worker.kernels.library import Level

FLAGS = {
    Level.AVX2: {"avx2", "fma", "f16c"},
    Level.AVX512: {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"},
    Level.AVX512_BF16: {"avx512_bf16"},
}
"""Of /proc/cpuinfo, beside those of the level below. AMX also takes a permission."""


def test_no_level_that_the_processor_has_is_missed() -> None:
    """Every test would pass at the levels that are left, and a server be slow without a word."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    if flags is None:
        pytest.skip("this system names no flags of its processor")
    expected = Level.PORTABLE
    for level, needed in FLAGS.items():
        if not needed <= set(flags):
            break
        expected = level
    assert library().highest_level >= expected
