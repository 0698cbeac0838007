"""The compiled operators around the linears: the reference's results, the same bits everywhere."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given as any_of
from hypothesis import settings
from hypothesis import strategies as st

from tests.support.operators import backend, batch_of, compute, floats, given, levels
from tests.support.pages import laid, laid_keys
from worker.backends.cpu import CpuBackend, StepInputs
from worker.batch import Batch
from worker.errors import KernelError
from worker.kernels.checks import Floats, to_float32
from worker.kernels.packed import Format
from worker.kernels.records import Buffer, CStep, Record, Rows, address_of
from worker.kernels.rms_norm import (
    add_rms_norm_reference,
    head_norm_reference,
    rms_norm_reference,
)
from worker.kernels.rope import (
    pack_rotary,
    rope_reference,
    rope_shift_reference,
    rotation,
)
from worker.kernels.silu_mul import silu_mul_reference
from worker.kv_cache import LayerPages

WIDTHS = st.integers(1, 150)
SEEDS = st.integers(0, 99)


def everywhere(operator: Callable[[CpuBackend], Buffer], batch: Batch) -> Floats:
    """Compute at every level, and with one thread; all must agree bit for bit."""
    backends = [*(backend(level) for level in levels()), backend(num_threads=1)]
    results = [compute(ops, lambda ops=ops: operator(ops), batch) for ops in backends]
    for result in results[1:]:
        assert np.array_equal(result, results[0], equal_nan=True)
    return results[0]


def close(got: Floats, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=3e-6)


def to_bf16(x: Floats) -> Any:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def kept(form: str, array: Floats) -> Any:
    """As a cache keeps it."""
    return to_bf16(array) if form == "bf16" else array.copy()


@settings(max_examples=20, deadline=None)
@any_of(rows=st.integers(1, 20), width=WIDTHS, seed=SEEDS)
def test_rms_norm(rows: int, width: int, seed: int) -> None:
    x, residual, weight = floats(rows, width, seed=seed), floats(rows, width), floats(width)
    alone = everywhere(lambda ops: ops.rms_norm(given(x), weight, 1e-5), batch_of(rows))
    close(alone, rms_norm_reference(x, weight, 1e-5))
    normed, total = add_rms_norm_reference(x, residual, weight, 1e-5)
    for part, expected in enumerate((normed, total)):

        def add(ops: CpuBackend, part: int = part) -> Buffer:
            return ops.add_rms_norm(given(x), given(residual), weight, 1e-5)[part]

        close(everywhere(add, batch_of(rows)), expected)
    last = everywhere(lambda ops: ops.rms_norm(given(x[-1:].copy()), weight, 1e-5), batch_of(1))
    assert np.array_equal(last, alone[-1:])


@settings(max_examples=10, deadline=None)
@any_of(
    rows=st.integers(1, 12), heads=st.integers(1, 5), kv_heads=st.integers(1, 3), width=WIDTHS,
    seed=SEEDS,
)  # fmt: skip
def test_head_norm(rows: int, heads: int, kv_heads: int, width: int, seed: int) -> None:
    qkv = floats(rows, (heads + 2 * kv_heads) * width, seed=seed)
    q, k = floats(width, seed=1), floats(width, seed=2)
    got = everywhere(lambda ops: ops.head_norm(given(qkv), q, k, heads, 1e-6), batch_of(rows))
    close(got, head_norm_reference(qkv, q, k, heads, 1e-6))


@settings(max_examples=15, deadline=None)
@any_of(rows=st.integers(1, 5), width=st.one_of(WIDTHS, st.just(4100)), seed=SEEDS)
def test_silu_mul(rows: int, width: int, seed: int) -> None:
    x = floats(rows, 2 * width, seed=seed) * np.float32(20)
    got = everywhere(lambda ops: ops.silu_mul(given(x)), batch_of(rows))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, silu_mul_reference(x), rtol=2e-6, atol=1e-30)


def test_silu_of_what_no_cache_holds() -> None:
    """Of 8 MiB and more: processors with tiles write those past their caches."""
    x = floats(256, 2 * 8192)
    got = everywhere(lambda ops: ops.silu_mul(given(x)), batch_of(256))
    np.testing.assert_allclose(got, silu_mul_reference(x), rtol=2e-6, atol=1e-30)


def test_silu_of_extremes() -> None:
    x = np.array([[-1000, 1000, 0, np.nan, -np.inf, 2, 2, 2, 1, 2]], np.float32)
    got = everywhere(lambda ops: ops.silu_mul(given(x)), batch_of(1))[0]
    assert got[:3].tolist() == [0, 2000, 0] and np.isnan(got[3:]).all()


def test_silu_where_the_exponential_leaves_the_floats() -> None:
    gate = np.concatenate([np.linspace(-110, -80, 500), np.linspace(80, 110, 500)])
    x = np.concatenate([gate, np.full(1000, 1e30)]).astype(np.float32)[None]
    got = everywhere(lambda ops: ops.silu_mul(given(x)), batch_of(1))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, silu_mul_reference(x), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("form", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(4, 2, 8), (3, 2, 80), (7, 1, 16), (2, 1, 32), (1, 1, 2), (2, 2, 256)],
)
def test_rope(heads: int, kv_heads: int, head_dim: int, form: str) -> None:
    """Equal to the reference bit for bit, and only the cells of the step are written."""
    rotary = pack_rotary([1e4 ** (-i / head_dim) for i in range(0, head_dim, 2)], 1.25)
    positions = np.array([0, 1, 7, 100, 5000, 30000, 131071, 12, 13], np.int32)
    cells = np.random.default_rng(0).permutation(64)[:9].astype(np.int32)
    qkv = floats(9, (heads + 2 * kv_heads) * head_dim)
    batch = batch_of(9, positions=positions, cells=cells)
    blank = floats(4, 16, kv_heads, head_dim, seed=5)
    split = qkv.reshape(9, -1, head_dim)
    turned = rope_reference(split[:, : heads + kv_heads], rotation(positions, rotary))
    expected = LayerPages(kept(form, blank), kept(form, blank))
    written = (turned[:, heads:], split[:, heads + kv_heads :])
    for pages, rows in zip(expected, written, strict=True):
        pages.reshape(64, kv_heads, head_dim)[cells] = kept(form, np.ascontiguousarray(rows))
    for level in levels():
        ops, cache = backend(level), laid(kept(form, blank), kept(form, blank))

        def turn(ops: CpuBackend = ops, cache: LayerPages = cache) -> Buffer:
            return ops.rope(given(qkv), StepInputs(), cache, heads, rotary)

        q = compute(ops, turn, batch)
        assert np.array_equal(q.reshape(9, heads, head_dim), turned[:, :heads])
        for got, wanted in zip(cache, laid(*expected), strict=True):
            assert np.array_equal(got, wanted)


@pytest.mark.parametrize("form", ["f32", "bf16"])
@pytest.mark.parametrize("delta", [-70, 3, 1000])
def test_rope_shift(delta: int, form: str) -> None:
    rotary = pack_rotary([1e4 ** (-i / 40) for i in range(0, 40, 2)], 1.25)
    cells = np.array([3, 77, 20], np.int32)
    before = kept(form, floats(5, 16, 2, 40))
    expected = to_float32(before).copy()
    rope_shift_reference(expected, cells, delta, rotary)
    for level in levels():
        pages = laid_keys(before)
        backend(level).rope_shift(LayerPages(pages, pages), cells, delta, rotary)
        assert np.array_equal(pages, laid_keys(kept(form, expected)))
    with pytest.raises(KernelError, match="cells outside 0..79"):
        backend().rope_shift(LayerPages(pages, pages), np.array([80], np.int32), 1, rotary)


@pytest.mark.parametrize("form", [Format.BF16, Format.INT8, Format.INT4], ids=lambda f: f.name)
def test_what_threads_hand_each_other(form: Format) -> None:
    """So much that some processors write it past the caches: each operator reads it as written."""
    width, rows = 1024, 40
    first, second = floats(2 * width, width, seed=1), floats(width, width, seed=2)
    x, residual, weight = floats(rows, width), floats(rows, width, seed=3), floats(width, seed=4)
    results = []
    for ops in (backend(level, form, n) for level in levels() for n in (1, 2)):
        up, down = ops.pack_linear([first]), ops.pack_linear([second])

        def layer(ops: CpuBackend = ops, up: Any = up, down: Any = down) -> Buffer:
            out = ops.linear(ops.silu_mul(ops.linear(given(x), up)), down)
            out, total = ops.add_rms_norm(out, given(residual), weight, 1e-5)
            return ops.add_rms_norm(ops.linear(out, down), total, weight, 1e-5)[0]

        results += [compute(ops, layer, batch_of(rows)) for _ in range(3)]
    for result in results[1:]:
        assert np.array_equal(result, results[0])


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_every_number_that_a_table_may_hold(dtype: Any) -> None:
    table = np.arange(65536, dtype=np.uint16).view(dtype).reshape(64, 1024)
    with np.errstate(all="ignore"):
        expected = to_float32(table)
    got = everywhere(lambda ops: ops.embedding(table, None), batch_of(64))
    assert np.array_equal(got, expected, equal_nan=True)


def test_rows_that_want_logits_and_rows_whose_state_is_wanted() -> None:
    wanted = {"logit_rows": np.array([7, 2], np.int32), "state_rows": np.array([3], np.int32)}
    x, weight, batch = floats(9, 40), floats(40, seed=1), batch_of(9, **wanted)
    for rows, places in zip((Rows.LOGITS, Rows.STATES), wanted.values(), strict=True):

        def take(ops: CpuBackend, rows: Rows = rows) -> Buffer:
            return ops.take_rows(given(x), rows)

        def norm(ops: CpuBackend, rows: Rows = rows) -> Buffer:
            return ops.rms_norm(ops.take_rows(given(x), rows), weight, 1e-5)

        assert np.array_equal(everywhere(take, batch), x[places])
        close(everywhere(norm, batch), rms_norm_reference(x[places], weight, 1e-5))


def test_an_operator_that_the_library_lacks_is_named() -> None:
    record = Record(99, Rows.TOKENS, ()).pack(0)  # type: ignore[arg-type]
    step = CStep(num_tokens=1)
    with pytest.raises(KernelError, match="record 0: the library has no such operator"):
        backend().run(address_of(record), 1, ctypes.addressof(step))


def test_a_step_in_which_no_row_wants_logits() -> None:
    x = floats(3, 8)
    nothing = batch_of(3, logit_rows=np.array([], np.int32))
    got = compute(backend(), lambda: backend().take_rows(given(x), Rows.LOGITS), nothing)
    assert got.shape == (0, 8)
