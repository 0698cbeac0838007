"""Every operator against its formula in float64, and against arrays it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.operators import floats
from worker.errors import KernelError
from worker.kernels.embedding import embedding_reference
from worker.kernels.linear import linear_reference, pack_linear, pack_tied
from worker.kernels.paged_attention import paged_attention_reference, plan_attention
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
    store_kv_reference,
)
from worker.kernels.silu_mul import silu_mul_reference

SHAPES = [(1, 8), (3, 32), (17, 48), (70, 130)]


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def close(got: Any, expected: Any) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_embedding() -> None:
    table = floats(10, 4)
    assert np.array_equal(embedding_reference(table, ints(3, 0, 3)), table[[3, 0, 3]])


@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_rms_norm(rows: int, hidden: int) -> None:
    x, weight, residual = floats(rows, hidden), floats(hidden, seed=1), floats(rows, hidden, seed=2)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    close(rms_norm_reference(x, weight, 1e-5), expected)
    normed, total = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert np.array_equal(total, x + residual)
    assert np.array_equal(normed, rms_norm_reference(total, weight, 1e-5))


@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_silu_mul(rows: int, hidden: int) -> None:
    x = floats(rows, hidden)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    close(silu_mul_reference(x), gate / (1 + np.exp(-gate)) * up)


def test_silu_of_extremes() -> None:
    x = np.array([[-1000, 1000, 0, 2, 2, 2]], np.float32)
    with np.errstate(over="ignore"):
        assert silu_mul_reference(x).tolist() == [[0, 2000, 0]]


@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
@pytest.mark.parametrize("outputs", [1, 17, 96])
def test_linear(rows: int, hidden: int, outputs: int) -> None:
    x, weights = floats(rows, hidden), [floats(outputs, hidden, seed=s) for s in (1, 2)]
    biases = [floats(outputs, seed=s) for s in (3, 4)]
    packed = pack_linear(weights, biases)
    expected = x.astype(np.float64) @ np.concatenate(weights).T + np.concatenate(biases)
    close(linear_reference(x, packed), expected)
    tied = linear_reference(x, pack_tied(weights[0]))
    close(tied, x.astype(np.float64) @ weights[0].T)


@pytest.mark.parametrize("place", range(11))
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (37, 51), (192, 320), (300, 1)])
def test_a_row_of_a_linear_does_not_see_its_place(inputs: int, outputs: int, place: int) -> None:
    packed = pack_linear([floats(outputs, inputs)])
    x = floats(11, inputs, seed=9)
    alone = linear_reference(x[place : place + 1], packed)
    assert np.array_equal(linear_reference(x, packed)[place], alone[0])


@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim"), [(4, 2, 8), (3, 1, 6), (1, 1, 2)])
def test_head_norm(num_heads: int, kv_heads: int, head_dim: int) -> None:
    qkv = floats(5, (num_heads + 2 * kv_heads) * head_dim)
    weights = floats(head_dim, seed=1), floats(head_dim, seed=2)
    got = head_norm_reference(qkv, *weights, num_heads, 1e-5).reshape(5, -1, head_dim)
    heads = qkv.reshape(5, -1, head_dim).astype(np.float64)
    normed = heads / np.sqrt((heads**2).mean(2, keepdims=True) + 1e-5)
    close(got[:, :num_heads], normed[:, :num_heads] * weights[0])
    close(got[:, num_heads:-kv_heads], normed[:, num_heads:-kv_heads] * weights[1])
    assert np.array_equal(got[:, -kv_heads:], heads[:, -kv_heads:])


ROTARY = pack_rotary([10000 ** (-2 * i / 8) for i in range(4)])


def test_rope_turns_pairs_of_halves() -> None:
    heads = floats(5, 3, 8)
    positions = ints(0, 1, 7, 100, 5000)
    got = rope_reference(heads, rotation(positions, ROTARY))
    for t, position in enumerate(positions.tolist()):
        for i in range(4):
            angle = position * 10000 ** (-2 * i / 8)
            turn = complex(np.cos(angle), np.sin(angle))
            expected = (heads[t, :, i] + 1j * heads[t, :, i + 4]) * turn
            np.testing.assert_allclose(got[t, :, i], expected.real, atol=2e-3)
            np.testing.assert_allclose(got[t, :, i + 4], expected.imag, atol=2e-3)
    assert np.array_equal(got[0], heads[0])
    twice = rope_reference(heads, rotation(positions, ROTARY._replace(attention_factor=2.0)))
    assert np.array_equal(twice, 2 * got)


@pytest.mark.parametrize("delta", [-7, 0, 90])
def test_rope_shift_is_rope_at_another_position(delta: int) -> None:
    heads, rotary = floats(3, 2, 8), ROTARY._replace(attention_factor=1.25)
    pages = floats(4, 1, 2, 8)
    pages[[3, 0, 2]] = rope_reference(heads, rotation(ints(7, 20, 300), rotary))[:, None]
    before = pages.copy()
    rope_shift_reference(pages, ints(3, 0, 2), delta, rotary)
    moved = rope_reference(heads, rotation(ints(7, 20, 300) + np.int32(delta), rotary))
    np.testing.assert_allclose(pages[[3, 0, 2], 0], moved, atol=1e-4)
    assert np.array_equal(pages[1], before[1])


def test_store_kv_writes_its_cells_only() -> None:
    cache = (np.zeros((3, 16, 2, 4), np.float32), np.zeros((3, 16, 2, 4), np.float32))
    keys, values = floats(2, 2, 4), floats(2, 2, 4, seed=1)
    store_kv_reference(keys, values, ints(17, 47), cache)
    assert np.array_equal(cache[0][1, 1], keys[0]) and np.array_equal(cache[1][2, 15], values[1])
    assert np.count_nonzero(cache[0]) == np.count_nonzero(cache[1]) == 16


@pytest.mark.parametrize("window", [0, 1, 8, 64, 65, 1000])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim"), [(4, 2, 8), (7, 1, 16), (2, 2, 32)])
def test_paged_attention(
    num_heads: int, kv_heads: int, head_dim: int, block_size: int, window: int
) -> None:
    """Two prompts and three decoding sequences, over scattered blocks."""
    spans = [(0, 70), (129, 130), (3, 9), (63, 64), (64, 65)]
    shape = (960 // block_size, block_size, kv_heads, head_dim)
    keys, values = (floats(*shape, seed=s) for s in (1, 2))
    order = np.random.default_rng(0).permutation(len(keys))
    tables = order[: len(keys) * 3 // 4].reshape(5, -1).astype(np.int32)
    positions = np.concatenate([np.arange(a, b) for a, b in spans]).astype(np.int32)
    starts = np.cumsum([0] + [b - a for a, b in spans]).astype(np.int32)
    q = floats(len(positions), num_heads, head_dim, seed=3)
    plan = plan_attention(starts, positions, tables, block_size, window)
    got = paged_attention_reference(q, plan, (keys, values))
    for b, (first, stop) in enumerate(spans):
        for t, position in enumerate(range(first, stop), start=int(starts[b])):
            oldest = max(0, position + 1 - window) if window else 0
            for head in range(num_heads):
                mine = head * kv_heads // num_heads
                k, v = (
                    pages[tables[b]].reshape(-1, kv_heads, head_dim)[oldest : position + 1, mine]
                    for pages in (keys, values)
                )
                scores = k.astype(np.float64) @ q[t, head] / np.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                close(got[t, head], weights @ v / weights.sum())


PACKED = pack_linear([floats(4, 8)])
CACHE = (np.zeros((2, 16, 2, 4), np.float32), np.zeros((2, 16, 2, 4), np.float32))
REFUSED: dict[str, Callable[[], object]] = {
    "embedding: table has dtype float64": lambda: embedding_reference(
        np.zeros((2, 2)), ints(0)  # type: ignore[arg-type]
    ),
    "embedding: rows outside 0..1": lambda: embedding_reference(floats(2, 2), ints(2)),
    "embedding: rows outside": lambda: embedding_reference(floats(2, 2), ints(-1)),
    "rms_norm: x has shape": lambda: rms_norm_reference(floats(4), floats(4), 1e-6),
    "rms_norm: weight has shape": lambda: rms_norm_reference(floats(2, 4), floats(5), 1e-6),
    "rms_norm: x is not C-contiguous": lambda: rms_norm_reference(floats(4, 4).T, floats(4), 1e-6),
    "add_rms_norm: residual has shape": lambda: add_rms_norm_reference(
        floats(2, 4), floats(3, 4), floats(4), 1e-6
    ),
    "silu_mul: gate_up has 3 columns": lambda: silu_mul_reference(floats(2, 3)),
    "linear: x has shape": lambda: linear_reference(floats(2, 7), PACKED),
    "linear: weight has shape": lambda: pack_linear([floats(2, 7), floats(2, 8)]),
    "linear: bias has shape": lambda: pack_linear([floats(2, 7)], [floats(3)]),
    "rope: positions has dtype int64": lambda: rotation(
        np.zeros(2, np.int64), ROTARY  # type: ignore[arg-type]
    ),
    "head_norm: qkv has 12 columns": lambda: head_norm_reference(
        floats(2, 12), floats(4), floats(4), 2, 1e-6
    ),
    "head_norm: k_weight has shape": lambda: head_norm_reference(
        floats(2, 16), floats(4), floats(5), 2, 1e-6
    ),
    "rope_shift: cells outside 0..31": lambda: rope_shift_reference(
        floats(2, 16, 2, 8), ints(32), 1, ROTARY
    ),
    "rope_shift: keys has shape": lambda: rope_shift_reference(CACHE[0], ints(0), 1, ROTARY),
    "store_kv: cells outside 0..31": lambda: store_kv_reference(
        floats(1, 2, 4), floats(1, 2, 4), ints(32), CACHE
    ),
    "store_kv: keys has shape": lambda: store_kv_reference(
        floats(1, 2, 5), floats(1, 2, 5), ints(0), CACHE
    ),
    "paged_attention: q has shape": lambda: paged_attention_reference(
        floats(2, 2, 4), plan_attention(ints(0, 1), ints(0), ints(0).reshape(1, 1), 16), CACHE
    ),
    "paged_attention: values has shape": lambda: paged_attention_reference(
        floats(1, 2, 4),
        plan_attention(ints(0, 1), ints(0), ints(0).reshape(1, 1), 16),
        (CACHE[0], floats(2, 16, 1, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_an_operator_refuses(words: str) -> None:
    with pytest.raises(KernelError, match=words):
        REFUSED[words]()
