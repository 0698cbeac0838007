"""Embedding, norms, rotary positions, the gate, page copies: against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.case import Case, close, f32, i32, pack_linear, rounded
from worker.backends.cuda_weights import quantized, to_storage
from worker.kernels.structs import HEADS

DTYPES = ["f32", "bf16", pytest.param("f16", marks=pytest.mark.kernels)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(case: Case, dtype: str) -> None:
    table, ids = case.normal(37, 64), np.array([0, 36, 7, 7, 16], np.int32)
    form = "embedding" if dtype == "f32" else "embedding_packed"
    steps, scale = quantized(table)
    wanted = {dtype: rounded(table, dtype), "int8": steps * scale[:, None]}
    drawn = case.put(np.array([9, 36, -1], np.int32))
    promised = case.put(np.array([~1, 4, ~2, ~0, ~1], np.int32))
    for kind in (dtype, "int8"):
        linear = pack_linear(case.gpu, dtype, [table], is_int8=kind == "int8")
        out = case.poisoned((5, 64), "f32")
        for places, found in ((case.put(ids), ids), (promised, [36, 4, 0, 9, 36])):
            arguments = (out, linear.weight, linear.scale, places, drawn, i32(64))
            case.gpu.launch(f"{form}_{kind}", (5,), 128, arguments)
            np.testing.assert_array_equal(case.get(out), wanted[kind][found])


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 896])
def test_add_and_norm(case: Case, dtype: str, width: int) -> None:
    x, residual, weight = case.normal(5, width), case.normal(5, width), case.normal(width)
    kept, out = case.put(residual), case.poisoned((5, width), dtype)
    arguments = (out, kept, case.put(x), case.put(weight), None, i32(width), f32(1e-6))
    case.gpu.launch(f"add_rms_norm_{dtype}", (5,), 256, arguments)
    np.testing.assert_array_equal(case.get(kept), x + residual)
    close(case.get(out, dtype), norm(x + residual, weight), dtype, scale=4)


def test_norm_of_some_rows_keeps_the_residual(case: Case) -> None:
    x, residual, weight = case.normal(5, 64), case.normal(5, 64), case.normal(64)
    rows, kept, out = np.array([4, 0], np.int32), case.put(residual), case.poisoned((2, 64), "f32")
    arguments = (out, kept, case.put(x), case.put(weight), case.put(rows), i32(64), f32(1e-6))
    case.gpu.launch("add_rms_norm_f32", (2,), 256, arguments)
    np.testing.assert_array_equal(case.get(kept), residual)
    close(case.get(out), norm((x + residual)[rows], weight), "f32", scale=4)


def turned(heads: np.ndarray, angles: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    half = heads.shape[-1] // 2
    pairs = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [("f32", 16), ("bf16", 64), pytest.param("f16", 128, marks=pytest.mark.kernels)],
)
def test_rope(case: Case, dtype: str, head_dim: int, is_normed: bool) -> None:
    num_heads, num_kv_heads, page_size, num_pages = 3, 2, 4, 6
    positions = np.array([0, 3, 9000, 131071], np.int32)
    cells = np.array([23, 0, 7, 12], np.int32)
    waves = (1e6 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    qkv = case.normal(4, num_heads + 2 * num_kv_heads, head_dim)
    q_weight, k_weight = case.normal(head_dim), case.normal(head_dim)
    turns = case.poisoned((4, head_dim // 2, 2), "f32")
    sizes = (i32(4), i32(head_dim // 2))
    arguments = (turns, case.put(positions), case.put(waves), f32(1.5), *sizes)
    case.gpu.launch("rope_table", (-(-4 * head_dim // 256),), 128, arguments)
    q = case.poisoned((4, num_heads, head_dim), dtype)
    pages = [case.poisoned((num_pages, num_kv_heads, page_size, head_dim), dtype) for _ in "kv"]
    heads = np.array((num_heads, num_kv_heads, page_size.bit_length() - 1, 1e-6), HEADS)
    norms = (case.put(q_weight), case.put(k_weight)) if is_normed else (None, None)
    inputs = (case.put(to_storage(qkv, dtype)), turns, case.put(cells), *norms, heads)
    case.gpu.launch(f"rope_{dtype}_{head_dim}", (4, 2), 128, (q, *pages, *inputs))
    exact = rounded(qkv, dtype).astype(np.float64)
    parts = exact[:, :num_heads], exact[:, num_heads:-num_kv_heads], exact[:, -num_kv_heads:]
    if is_normed:
        parts = norm(parts[0], q_weight), norm(parts[1], k_weight), parts[2]
    angles = (positions.astype(np.float32)[:, None] * waves)[:, None].astype(np.float64)
    close(case.get(q, dtype), 1.5 * turned(parts[0], angles), dtype, scale=8)
    stored = [
        case.get(page, dtype).swapaxes(1, 2).reshape(-1, num_kv_heads, head_dim) for page in pages
    ]
    close(stored[0][cells], 1.5 * turned(parts[1], angles), dtype, scale=8)
    np.testing.assert_array_equal(stored[1][cells], rounded(qkv, dtype)[:, -num_kv_heads:])
    untouched = np.delete(stored[0], cells, axis=0)
    assert np.isnan(untouched).all()


def test_shifted_keys_are_those_of_the_new_positions(case: Case) -> None:
    waves = (1e4 ** (-np.arange(0, 16, 2) / 16)).astype(np.float32)
    plain = case.normal(8, 16)
    at = [turned(plain, np.arange(start, start + 8)[:, None] * waves) for start in (40, 9)]
    keys = case.put(at[0].astype(np.float32).reshape(2, 4, 1, 16).swapaxes(1, 2).copy())
    heads = np.array((1, 1, 2, 0), HEADS)
    cells = case.put(np.arange(8, dtype=np.int32))
    case.gpu.launch("rope_shift_f32_16", (8,), 32, (keys, cells, case.put(waves), i32(-31), heads))
    close(case.get(keys).reshape(8, 16), at[1], "f32", scale=16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(case: Case, dtype: str) -> None:
    both, out = case.normal(3, 600), case.poisoned((3, 300), dtype)
    arguments = (out, case.put(to_storage(both, dtype)), i32(300))
    case.gpu.launch(f"silu_mul_{dtype}", (3, 2), 256, arguments)
    gate, up = np.split(rounded(both, dtype).astype(np.float64), 2, axis=1)
    close(case.get(out, dtype), gate / (1 + np.exp(-gate)) * up, dtype, scale=4)


def test_page_copy(case: Case) -> None:
    arena = case.rng.integers(0, 2**32, (6, 5, 7, 4), dtype=np.uint32)
    device = case.put(arena)
    copies = case.put(np.array([[1, 4], [0, 2]], np.int32))
    case.gpu.launch("page_copy", (2, 6), 128, (device, copies, i32(5), i32(7)))
    arena[:, 4], arena[:, 2] = arena[:, 1], arena[:, 0]
    np.testing.assert_array_equal(case.gpu.read(device), arena)


def test_pages_are_gathered_and_scattered(case: Case) -> None:
    """Three pages of six planes come out one after the other, and go back to other places."""
    arena = case.rng.integers(0, 2**32, (6, 5, 133, 4), dtype=np.uint32)
    device, sizes = case.put(arena), (i32(5), i32(133))
    out = case.put(np.zeros((3, 6, 133, 4), np.uint32))
    pages = case.put(np.array([4, 0, 2], np.int32))
    case.gpu.launch("page_gather", (3, 6), 128, (out, device, pages, *sizes))
    gathered = case.gpu.read(out)
    np.testing.assert_array_equal(gathered, arena[:, [4, 0, 2]].swapaxes(0, 1))
    places = case.put(np.array([1, 4, 3], np.int32))
    case.gpu.launch("page_scatter", (3, 6), 128, (device, out, places, *sizes))
    arena[:, [1, 4, 3]] = gathered.swapaxes(0, 1)
    np.testing.assert_array_equal(case.gpu.read(device), arena)
