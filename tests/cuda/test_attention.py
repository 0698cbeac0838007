"""Paged attention against float64 in any mixture; the bits of decode against those of prefill."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.cuda.case import EPSILON, Case, rounded
from worker.backends.cuda_weights import from_storage, to_storage
from worker.kernels.structs import (
    SHAPE,
    SPLIT,
    attention_shared_bytes,
    prefill_attention_shared_bytes,
)

SLOW = pytest.mark.kernels


class Form(NamedTuple):
    """`sequences` are (tokens before, new tokens)."""

    head_dim: int
    group: int
    num_kv_heads: int
    page_size: int
    window: int
    sequences: tuple[tuple[int, int], ...]


FORMS = [
    Form(64, 7, 2, 16, 0, ((300, 1), (0, 1), (515, 3))),
    Form(16, 2, 2, 1, 0, ((5, 9), (300, 1))),
    Form(64, 4, 1, 16, 50, ((0, 40), (290, 20))),
    pytest.param(Form(128, 6, 1, 16, 0, ((0, 70), (600, 33))), marks=SLOW),
    pytest.param(Form(80, 1, 2, 16, 300, ((0, 90), (590, 20))), marks=SLOW),
    pytest.param(Form(96, 16, 1, 1, 0, ((255, 2), (256, 1), (257, 5))), marks=SLOW),
    pytest.param(Form(32, 3, 3, 16, 1, ((255, 2), (9, 30))), marks=SLOW),
]


class Inputs:
    """Pages with NaN wherever no token of a sequence stands."""

    def __init__(self, case: Case, form: Form, dtype: str) -> None:
        self.form = form
        num_pages = max(-(-(c + n) // form.page_size) for c, n in form.sequences)
        shape = (num_pages * len(form.sequences), form.num_kv_heads, form.page_size, form.head_dim)
        order = case.rng.permutation(shape[0]).astype(np.int32)
        self.tables = order.reshape(len(form.sequences), num_pages)
        self.keys, self.values = case.normal(*shape), case.normal(*shape)
        for b, (context, new) in enumerate(form.sequences):
            for p in range(context + new, num_pages * form.page_size):
                page, offset = self.tables[b, p // form.page_size], p % form.page_size
                self.keys[page, :, offset] = self.values[page, :, offset] = np.nan
        num_tokens = sum(new for _, new in form.sequences)
        self.q = case.normal(num_tokens, form.group * form.num_kv_heads, form.head_dim)
        scale = form.head_dim**-0.5 * np.log2(np.e)
        heads = form.group * form.num_kv_heads
        shift = form.page_size.bit_length() - 1
        sizes = (heads, form.num_kv_heads, shift, num_pages, form.window, scale)
        self.shape = np.array(sizes, SHAPE)
        stored = [case.put(to_storage(a, dtype)) for a in (self.q, self.keys, self.values)]
        self.arrays = (*stored, case.put(self.tables))

    def tiles(self, pad: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        rows, token = [], 0
        per_tile = 16 // self.form.group
        for b, (context, new) in enumerate(self.form.sequences):
            rows += [
                (b, token + i, min(per_tile, new - i), context + i) for i in range(0, new, per_tile)
            ]
            rows += [(b, 0, 0, 0)] * (-len(rows) % pad)
            token += new
        tiles = np.array(rows, np.int32)
        parts = (tiles[:, 3] + tiles[:, 2] - 1) // SPLIT + 1
        return tiles, (np.cumsum(parts) - parts).astype(np.int32)

    def expected(self, dtype: str) -> np.ndarray[Any, Any]:
        form, out, token = self.form, np.zeros(self.q.shape), 0
        q, keys, values = (
            rounded(a, dtype).astype(np.float64) for a in (self.q, self.keys, self.values)
        )
        for b, (context, new) in enumerate(form.sequences):
            k, v = (
                a[self.tables[b]].swapaxes(0, 1).reshape(form.num_kv_heads, -1, form.head_dim)
                for a in (keys, values)
            )
            for position in range(context, context + new):
                first = max(0, position - form.window + 1) if form.window else 0
                for head in range(q.shape[1]):
                    mine = head // form.group
                    scores = k[mine, first : position + 1] @ q[token, head] * form.head_dim**-0.5
                    weights = np.exp(scores - scores.max())
                    out[token, head] = weights @ v[mine, first : position + 1] / weights.sum()
                token += 1
        return out


def decode(case: Case, inputs: Inputs, dtype: str) -> Any:
    form, (tiles, offsets) = inputs.form, inputs.tiles(1)
    total = int(offsets[-1]) + 100
    parts = case.poisoned((total, form.num_kv_heads, 16, form.head_dim + 2), "f32")
    out = case.poisoned(inputs.q.shape, dtype)
    rest = (case.put(tiles), case.put(offsets), inputs.shape)
    grid, name = (len(tiles), form.num_kv_heads, 2), f"{dtype}_{form.head_dim}"
    arguments = (parts, *inputs.arrays, *rest)
    case.gpu.launch(
        f"attention_decode_{name}", grid, 32, arguments, attention_shared_bytes(form.head_dim)
    )
    case.gpu.launch(f"attention_merge_{name}", grid[:2], 128, (out, parts, *rest))
    return case.gpu.read(out)


def prefill(case: Case, inputs: Inputs, dtype: str) -> Any:
    form, (tiles, _) = inputs.form, inputs.tiles(4)
    out = case.poisoned(inputs.q.shape, dtype)
    shared = prefill_attention_shared_bytes(form.head_dim)
    grid, name = (len(tiles) // 4, form.num_kv_heads), f"{dtype}_{form.head_dim}"
    arguments = (out, *inputs.arrays, case.put(tiles), inputs.shape)
    case.gpu.launch(f"attention_prefill_{name}", grid, 128, arguments, shared)
    return case.gpu.read(out)


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f16", marks=SLOW)])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_both_kernels_are_right_and_agree(case: Case, form: Form, dtype: str) -> None:
    inputs = Inputs(case, form, dtype)
    by_parts, by_tiles = decode(case, inputs, dtype), prefill(case, inputs, dtype)
    bound = 8 * EPSILON[dtype]
    np.testing.assert_allclose(
        from_storage(by_parts, dtype), inputs.expected(dtype), rtol=0, atol=bound
    )
    np.testing.assert_array_equal(by_parts, by_tiles)


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_float32(case: Case, form: Form) -> None:
    inputs = Inputs(case, form, "f32")
    counts = [new for _, new in form.sequences]
    positions = np.concatenate([np.arange(c, c + n) for c, n in form.sequences]).astype(np.int32)
    owners = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    out = case.poisoned(inputs.q.shape, "f32")
    arguments = (out, *inputs.arrays, case.put(owners), case.put(positions), inputs.shape)
    case.gpu.launch(f"attention_f32_{form.head_dim}", inputs.q.shape[:2], 32, arguments)
    np.testing.assert_allclose(case.get(out), inputs.expected("f32"), rtol=0, atol=2e-5)


def test_a_row_does_not_depend_on_the_cut_into_chunks(case: Case) -> None:
    """The last token of a prompt, computed in one chunk with all others or alone: equal bits."""
    whole = Inputs(case, Form(64, 7, 1, 16, 0, ((0, 300),)), "bf16")
    alone = Inputs(case, Form(64, 7, 1, 16, 0, ((299, 1),)), "bf16")
    alone.q = whole.q[-1:]
    alone.arrays = (case.put(to_storage(alone.q, "bf16")), *whole.arrays[1:])
    one = decode(case, alone, "bf16")
    np.testing.assert_array_equal(one[0], prefill(case, whole, "bf16")[-1])
