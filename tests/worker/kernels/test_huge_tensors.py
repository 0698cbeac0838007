"""Tensors of more than 2^31 elements, or bytes: no place in them is counted in 32 bits.

They are addresses without memory, but for the few pages that a test writes.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import pytest

from tests.support.operators import backend, batch_of, compute, floats, given, levels
from worker.backends.cpu import StepInputs
from worker.kernels.checks import Floats
from worker.kernels.library import Level
from worker.kernels.packed import Format, PackedWeight, Shape
from worker.kernels.rope import pack_rotary
from worker.kv_cache import LayerPages

NO_RESERVE = 0x4000
"""Of mmap, which has no name for it before Python 3.13: the system promises no memory."""


def sparse(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return zeros that take no memory until they are written."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    try:
        addresses = mmap.mmap(-1, num_bytes, flags=flags)
    except OSError as error:
        pytest.skip(f"this system gives no addresses without memory: {error}")
    return np.frombuffer(addresses, dtype).reshape(shape)


def attended(level: Level, blocks: list[int], num_blocks: int, dtype: Any) -> Floats:
    """Write 20 tokens to these blocks of a cache, and read them."""
    heads, kv_heads, head_dim, tokens = 16, 8, 128, 20
    ops, shape = backend(level), (num_blocks, 16, kv_heads, head_dim)
    cache = LayerPages(sparse(shape, dtype), sparse(shape, dtype))
    table, places = np.array([blocks], np.int32), np.arange(tokens)
    batch = batch_of(
        tokens,
        block_tables=table,
        cells=(table[0][places // 16] * 16 + places % 16).astype(np.int32),
    )
    rotary = pack_rotary([1e4 ** (-i / head_dim) for i in range(0, head_dim, 2)])
    qkv = floats(tokens, (heads + 2 * kv_heads) * head_dim)
    compute(ops, lambda: ops.rope(given(qkv), StepInputs(), cache, heads, rotary), batch)
    ops.rope_shift(cache, batch.cells[:3].copy(), 5, rotary)
    for page in cache:  # where NumPy finds them too, and not at the same wrong place each time
        assert all(page[block].any() for block in blocks)
    q = qkv[:, : heads * head_dim].copy()
    return compute(ops, lambda: ops.paged_attention(given(q), StepInputs(), cache), batch)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_a_cache(level: Level, dtype: Any) -> None:
    """The last blocks lie 2^32 elements from the first."""
    last = 2**32 // (16 * 8 * 128)
    far = attended(level, [last, last + 2], last + 3, dtype)
    assert np.array_equal(far, attended(level, [1, 0], 2, dtype))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_an_embedding_table(level: Level, dtype: Any) -> None:
    table, ops, last = sparse((2**22 + 2, 1024), dtype), backend(level), 2**22 + 1
    table[last], table[2**21 + 1] = 0x3F80 if dtype == np.uint16 else 1, 0
    ids = np.array([last, 2**21 + 1], np.int32)
    found = compute(ops, lambda: ops.embedding(table, None), batch_of(2, token_ids=ids))
    assert found.tolist() == [[1.0] * 1024, [0.0] * 1024]


@pytest.mark.parametrize(("form", "group"), [(Format.INT8, 256), (Format.BF16, 128)])
def test_a_linear(form: Format, group: int) -> None:
    """Of its weights all but the last panel are zero bytes; that one lies behind 2^31 of them."""
    num_inputs, ops = 8192, backend(weights=form)
    last = ops.pack_linear([floats(16, num_inputs)])
    shape = Shape(num_inputs, (2**31 // last.shape.weight_bytes + 2) * 16, form, group)
    assert last.shape.group == group
    whole = PackedWeight(
        shape,
        sparse((shape.weight_bytes,), np.uint8),
        sparse((shape.scale_bytes + 64,), np.uint8),
        None,
    )
    whole.weight[-len(last.weight) :] = last.weight
    whole.scales[shape.scale_bytes - len(last.scales) : shape.scale_bytes] = last.scales
    x = floats(1, num_inputs, seed=1)

    def through(packed: PackedWeight) -> Floats:
        return compute(ops, lambda: ops.linear(given(x), packed), batch_of(1))

    assert np.array_equal(through(whole)[:, -16:], through(last))
    assert not through(whole)[:, :-16].any()
