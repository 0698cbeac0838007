"""The compiled linears: right, and the same bits at every level, batch and number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as any_of
from hypothesis import settings
from hypothesis import strategies as st

from tests.support.operators import backend, batch_of, compute, floats, given, levels, library
from worker.backends.cpu import CpuBackend
from worker.errors import KernelError
from worker.kernels.checks import Floats, to_float32
from worker.kernels.library import Level
from worker.kernels.packed import Format

FLOATS = (Format.F32, Format.BF16, Format.F16)
ALL = tuple(Format)
BOUNDS = {
    Format.F32: 2e-6,
    Format.BF16: 8e-3,  # an activation and a weight rounded, 2^-8 each
    Format.F16: 1e-3,
    Format.INT8: 2e-2,
    Format.INT4: 0.2,
}
"""Error per unit of the sum of products' sizes; activations are rounded, or quantised."""


def linear(
    x: Floats, weight: Any, bias: Any = None, *, form: Format = Format.F32,
    level: Level | None = None, threads: int = 2,
) -> Floats:  # fmt: skip
    ops = backend(level, form, threads)
    packed = ops.pack_linear([weight], [] if bias is None else [bias])
    return compute(ops, lambda: ops.linear(given(x), packed), batch_of(len(x)))


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=25, deadline=None)
@any_of(
    rows=st.integers(1, 40), inputs=st.integers(1, 300) | st.sampled_from([128, 256, 320]),
    outputs=st.integers(1, 90), seed=st.integers(0, 99),
)  # fmt: skip
def test_near_the_product_and_equal_at_every_level(
    form: Format, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    x, weight = floats(rows, inputs, seed=seed), floats(outputs, inputs, seed=seed + 1)
    bias = floats(outputs, seed=seed + 2)
    results = [linear(x, weight, bias, form=form, level=level) for level in levels()]
    exact = x.astype(np.float64) @ weight.T + bias
    size = np.abs(x) @ np.abs(weight.T) + np.abs(bias)
    if form not in FLOATS:  # steps are as wide as the largest value makes them
        most = np.abs(x).max(axis=1, keepdims=True) * np.abs(weight).max(axis=1)
        size += inputs * most
    assert (np.abs(results[0] - exact) <= BOUNDS[form] * size).all()
    for result in results[1:]:
        assert np.array_equal(result, results[0])


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=25, deadline=None)
@any_of(
    rows=st.integers(1, 70) | st.just(530), inputs=st.integers(1, 1200),
    width=st.integers(1, 70) | st.sampled_from([16, 48, 160]), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_linear_that_gates_is_a_linear_and_a_gate(
    form: Format, rows: int, inputs: int, width: int, seed: int
) -> None:
    x, weight = floats(rows, inputs, seed=seed), floats(2 * width, inputs, seed=seed + 1)
    bias = floats(2 * width, seed=seed + 2)
    for level in levels():
        at_once, apart = both_ways_to_gate(x, weight, bias, form, level)
        assert np.array_equal(at_once, apart)


def both_ways_to_gate(
    x: Floats, weight: Floats, bias: Floats, form: Format, level: Level
) -> tuple[Floats, Floats]:
    ops, batch = backend(level, form), batch_of(len(x))
    packed = ops.pack_linear([weight], [bias])
    at_once = compute(ops, lambda: ops.gated_linear(given(x), packed), batch)
    return at_once, compute(ops, lambda: ops.silu_mul(ops.linear(given(x), packed)), batch)


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(
    "inputs, outputs", [(64, 150), (2200, 150), (8999, 331), (771, 2505), (190, 9000)]
)
def test_a_row_sees_neither_its_batch_nor_the_threads(
    form: Format, inputs: int, outputs: int
) -> None:
    """Weights of the last three shapes count as more than caches hold, in every format."""
    x, weight = floats(401, inputs), floats(outputs, inputs, seed=1)
    whole = linear(x, weight, form=form)
    assert np.array_equal(linear(x, weight, form=form, threads=1), whole)
    for rows in (*range(1, 18), 29):
        part = linear(x[-rows:].copy(), weight, form=form, threads=3)
        assert np.array_equal(part, whole[-rows:])


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("threads", [7, 64, 300])
def test_more_threads_than_work(form: Format, threads: int) -> None:
    """Those without a run of panels of their own take from others'; there is a most of runs."""
    for outputs in (5, 90, 1700):
        x, weight = floats(9, 300), floats(outputs, 300, seed=1)
        expected = linear(x, weight, form=form, threads=1)
        ops = CpuBackend(library(), levels()[-1], form, threads)
        packed = ops.pack_linear([weight])
        for _ in range(5):
            got = compute(ops, lambda: ops.linear(given(x), packed), batch_of(9))  # noqa: B023
            assert np.array_equal(got, expected)


def bf16_of(x: Floats) -> Floats:
    """Round to bfloat16, ties to even, and back."""
    bits = x.view(np.uint32)
    return to_float32(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """A fused multiply-add of bfloat16 factors: exact in float64 for values of like size."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def test_bf16_is_the_dot_product_of_the_tile_instruction() -> None:
    """Of 32 inputs the even and the odd ones are chains from zero; then both are added."""
    x, weight = bf16_of(floats(4, 96)), bf16_of(floats(48, 96, seed=1))
    total = np.zeros((4, 48), np.float32)
    for block in range(0, 96, 32):
        chains = [np.zeros((4, 48), np.float32) for _ in range(2)]
        for k in range(block, block + 32):
            chains[k % 2] = fused(x[:, k, None], weight[None, :, k], chains[k % 2])
        total += chains[0] + chains[1]
    assert np.array_equal(linear(x, weight, form=Format.BF16), total)


def test_weights_of_any_dtype_and_parts_of_any_size_are_stacked() -> None:
    x = floats(3, 40)
    parts = [floats(n, 40, seed=n).astype(np.float16) for n in (16, 7, 30)]
    ops = backend(weights=Format.F16)
    packed = ops.pack_linear(parts)
    stacked = compute(ops, lambda: ops.linear(given(x), packed), batch_of(3))
    apart = [linear(x, part, form=Format.F16) for part in parts]
    assert np.array_equal(stacked, np.concatenate(apart, axis=1))
    halves = (floats(16, 40).view(np.uint32) >> 16).astype(np.uint16)
    mixed = [halves[:7], floats(5, 40, seed=2), floats(3, 40, seed=3).astype(np.float16)]
    ops = backend(weights=Format.F32)
    packed = ops.pack_linear(mixed)
    stacked = compute(ops, lambda: ops.linear(given(x), packed), batch_of(3))
    whole = np.concatenate([to_float32(part) for part in mixed])
    assert np.array_equal(stacked, linear(x, whole, form=Format.F32))
    same = linear(x, to_float32(halves), form=Format.BF16)
    assert np.array_equal(linear(x, halves, form=Format.BF16), same)


@pytest.mark.parametrize("form", ALL)
def test_parts_of_whole_panels_are_stacked_as_they_come(form: Format) -> None:
    x, parts = floats(3, 300), [floats(n, 300, seed=n) for n in (16, 32, 5)]
    for level in levels():
        ops = backend(level, form)
        packed = ops.pack_linear(parts)
        stacked = compute(ops, lambda: ops.linear(given(x), packed), batch_of(3))  # noqa: B023
        apart = [linear(x, part, form=form, level=level) for part in parts]
        assert np.array_equal(stacked, np.concatenate(apart, axis=1))


@pytest.mark.parametrize("form", [Format.BF16, Format.F16])
def test_weights_become_the_nearest_of_their_format(form: Format) -> None:
    """All numbers of half precision, what lies between them, and numbers of any size."""
    halves = np.arange(65536, dtype=np.uint32)
    stored = halves << 16 if form is Format.BF16 else to_float32(halves.astype("u2").view("f2"))
    bits = np.stack(
        [
            stored.view(np.uint32) + between
            for between in (0, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)
        ]
    )
    weight = np.ascontiguousarray(bits.view(np.float32).reshape(16, -1))
    packed = backend(levels()[0], form).pack_linear([weight]).weight.view(np.uint16)
    lines = packed.reshape(-1, 16, 2) if form is Format.BF16 else packed.reshape(-1, 16, 1)
    got = lines.transpose(1, 0, 2).reshape(16, -1)
    with np.errstate(all="ignore"):
        expected = to_float32(weight.astype(np.float16))
    if form is Format.BF16:
        expected = bf16_of(weight)
    found = to_float32(got if form is Format.BF16 else got.view(np.float16))
    is_number = ~np.isnan(weight)
    assert np.array_equal(found[is_number].view(np.uint32), expected[is_number].view(np.uint32))
    assert np.isnan(found[~is_number]).all()


def sizes(*shape: int, seed: int) -> Floats:
    """Numbers of any size, denormal and near the largest, and zeros."""
    rng = np.random.default_rng(seed)
    powers = rng.uniform(-44, 38, shape) if seed % 2 else rng.uniform(-44, 38)
    values = rng.standard_normal(shape) * 10.0**powers
    return np.clip(values * (rng.random(shape) < 0.9), -3e38, 3e38).astype(np.float32)


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=25, deadline=None)
@any_of(seed=st.integers(0, 999), rows=st.integers(1, 9))
def test_numbers_of_any_size_give_the_same_bits_at_every_level(
    form: Format, seed: int, rows: int
) -> None:
    x, weight = sizes(rows, 200, seed=seed), sizes(70, 200, seed=seed // 2)
    first, *others = (
        linear(x, weight, form=form, level=level, threads=threads)
        for level in levels()
        for threads in (1, 3)
    )
    for other in others:
        assert np.array_equal(other, first, equal_nan=True)


@pytest.mark.parametrize("form", ALL)
def test_a_power_of_two_of_the_inputs_is_one_of_the_outputs(form: Format) -> None:
    """However small: activations, and weights of int8, have scales of their own size."""
    x, weight, small = floats(9, 300), floats(40, 300, seed=1), np.float32(2.0**-90)
    for level in levels():
        whole = linear(x, weight, form=form, level=level)
        assert np.array_equal(linear(x * small, weight, form=form, level=level), whole * small)
        if form is Format.INT8:
            assert np.array_equal(linear(x, weight * small, form=form, level=level), whole * small)


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("inputs", [64, 70])
def test_what_is_not_finite_stays_in_its_row(form: Format, inputs: int) -> None:
    """Also where it is the first that comes after a row whose inputs fill no vector."""
    x, weight = floats(14, inputs), floats(20, inputs, seed=1)
    expected = linear(x, weight, form=form)
    x[3, 0], x[9, 0] = np.nan, np.inf
    result = linear(x, weight, form=form)
    assert not np.isfinite(result[[3, 9]]).any()
    good = [row for row in range(14) if row not in (3, 9)]
    assert np.array_equal(result[good], expected[good])


@pytest.mark.parametrize("form", ALL)
def test_a_tied_head_leaves_the_table_as_it_is(form: Format) -> None:
    ops, stored = backend(weights=form), floats(37, 70).astype(np.float16)
    rows = np.array([0, 36, 5, 5], np.int32)
    table = ops.pack_vector(stored)
    before = ops.weight_bytes
    head = ops.pack_tied(table)
    assert ops.weight_bytes == before - stored.nbytes + head.num_bytes
    found = compute(ops, lambda: ops.embedding(table, None), batch_of(4, token_ids=rows))
    assert np.array_equal(found, stored[rows].astype(np.float32))


@pytest.mark.parametrize(("form", "bound"), [(Format.INT8, 0.012), (Format.INT4, 0.11)])
def test_quantised_weights_lose_as_little_as_they_must(form: Format, bound: float) -> None:
    """Root mean square error over that of the result, Gaussian weights and activations."""
    x, weight = floats(16, 1024), floats(256, 1024, seed=1)
    exact = x @ weight.T
    lost = linear(x, weight, form=form) - exact
    assert np.sqrt((lost**2).mean() / (exact**2).mean()) < bound


def test_a_group_of_int4_has_the_scale_that_loses_least() -> None:
    """Of those whose steps make its extreme -8 or -7, or cut a little off it."""
    even = np.random.default_rng(0).uniform(-1, 1, (32, 512)).astype(np.float32)
    weight = np.concatenate([floats(32, 512), even])
    packed = backend(weights=Format.INT4).pack_linear([weight])
    lines = packed.weight.reshape(4, -1, 16, 4)
    steps = np.stack([lines & 15, lines >> 4], axis=2).reshape(4, -1, 16, 4)
    scales = to_float32(packed.scales.view(np.uint16)).reshape(4, -1, 16).transpose(0, 2, 1)
    groups = weight.reshape(64, -1, 128)
    whole = steps.transpose(0, 2, 1, 3).reshape(groups.shape) - 8.0
    lost = ((whole * scales.reshape(64, -1, 1) - groups) ** 2).sum(axis=2)
    places = np.abs(groups).argmax(axis=2, keepdims=True)
    extreme = np.take_along_axis(groups, places, axis=2)
    errors = []
    for most in (-8.0, -7.0, -8.4, -8.9, -9.5):
        scale = bf16_of(extreme / np.float32(most))
        kept = np.clip(np.rint(groups / scale), -8, 7) * scale
        errors.append(((kept - groups) ** 2).sum(axis=2))
    assert set(np.argmin(errors, axis=0).flat) == {0, 1, 2, 3, 4}  # each is the best of some
    np.testing.assert_allclose(lost, np.min(errors, axis=0), rtol=1e-5)


@pytest.mark.parametrize("form", [Format.INT8, Format.INT4])
def test_quantised_products_are_exact_sums_in_order(form: Format) -> None:
    """Rebuilt in NumPy from the packed bytes: integers, then one fused step per group."""
    x, ops = floats(3, 500), backend(weights=form)
    packed = ops.pack_linear([floats(16, 500, seed=1)])
    result = compute(ops, lambda: ops.linear(given(x), packed), batch_of(3))
    lines = packed.weight.reshape(-1, 16, 4).astype(np.int64)
    if form is Format.INT4:
        lines = np.stack([lines & 15, lines >> 4], axis=1).reshape(-1, 16, 4)
    weight = lines.transpose(1, 0, 2).reshape(16, 512) - (128 if form is Format.INT8 else 8)
    wide = np.zeros((3, 512), np.float32)
    wide[:, :500] = x
    total = np.zeros((3, 16), np.float32)
    size = packed.shape.group
    assert size == (256 if form is Format.INT8 else 128)
    for group in range(512 // size):
        inputs = slice(group * size, (group + 1) * size)
        part = wide[:, inputs]
        most = np.abs(part).max(axis=1, keepdims=True)
        values = np.rint(part * (np.float32(127) / most)).astype(np.int64)
        sums = (values @ weight[:, inputs].T).astype(np.float32)
        scale = most / np.float32(127)
        if form is Format.INT8:
            total = fused(sums, scale, total)
        else:
            scales = to_float32(packed.scales.view(np.uint16)).reshape(-1, 16)
            total = fused(sums * scale, scales[group], total)
    if form is Format.INT8:
        total = total * packed.scales.view(np.float32)
    np.testing.assert_array_max_ulp(result, total, 1)  # float64 rounds twice, if seldom


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_of_int4_overflow_nowhere(sign: int) -> None:
    """Weights of 15 steps above the lowest, and activations that all become 127, or -127."""
    weight = np.full((16, 128), 7, np.float32)
    weight[:, 5] = -8  # so that a step is 1
    x = np.full((9, 128), sign, np.float32)
    for level in levels():
        result = linear(x, weight, form=Format.INT4, level=level)
        np.testing.assert_allclose(result, np.full((9, 16), sign * (127 * 7 - 8)), rtol=1e-6)


def test_wrong_operands_are_named() -> None:
    ops = backend()
    with pytest.raises(KernelError, match="weight has dtype int64"):
        ops.pack_linear([np.ones((4, 4), np.int64)])
    with pytest.raises(KernelError, match="bias has shape"):
        ops.pack_linear([floats(4, 4)], [floats(5)])
    packed = ops.pack_linear([floats(4, 4)])
    with pytest.raises(KernelError, match="x has width 5, expected 4"):
        compute(ops, lambda: ops.linear(given(floats(1, 5)), packed), batch_of(1))
    with pytest.raises(KernelError, match="outside of a recording"):
        ops.linear(given(floats(1, 4)), packed)
