"""How paged attention is launched on a GPU: by parts of the keys, or by tiles of queries.

Knows the kernels of worker/kernels/paged_attention.cu and attention_f32.cu; no model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worker.backends.cuda_cache import LayerPages
from worker.backends.cuda_step import CudaStep
from worker.backends.cuda_weights import STORAGE
from worker.backends.gpu import Array, Gpu, Scratch
from worker.kernels.structs import (
    SHAPE,
    WARPS,
    attention_shared_bytes,
    part_floats,
    prefill_attention_shared_bytes,
)


class CudaAttention:
    """Attention of one model's sizes, into a buffer of the scratch that it is given."""

    def __init__(self, gpu: Gpu, dtype: str, sizes: tuple[int, int, int]) -> None:
        """dtype: f32, bf16 or f16; sizes: heads, key heads, head_dim."""
        self._gpu = gpu
        self._dtype = dtype
        self._sizes = sizes

    def run(
        self, scratch: Scratch, q: Array, step: CudaStep, cache: LayerPages, window: int
    ) -> Array:
        """q [tokens, heads, head_dim] → [tokens, heads * head_dim], of the dtype."""
        num_heads, num_kv_heads, head_dim = self._sizes
        scale = head_dim**-0.5 * np.log2(np.e)
        sizes = (num_heads, num_kv_heads, step.page_shift, step.max_pages, window, scale)
        shape = np.array(sizes, SHAPE)
        out = scratch.take("mixed", (step.num_tokens, num_heads * head_dim), STORAGE[self._dtype])
        if self._dtype == "f32":
            tokens = (step.tables, step.owners, step.positions)
            grid = (step.num_tokens, num_heads)
            pages = (cache.keys, cache.values)
            name = f"attention_f32_{head_dim}"
            self._gpu.launch(name, grid, 32, (out, q, *pages, *tokens, shape))
            return out
        if step.decode.num_tiles:
            self._run_by_parts(scratch, out, q, step, cache, shape)
        if step.prefill.num_tiles:
            arguments = (out, q, cache.keys, cache.values, step.tables, step.prefill.tiles, shape)
            grid = (step.prefill.num_tiles // WARPS, num_kv_heads)
            name = f"attention_prefill_{self._dtype}_{head_dim}"
            shared_bytes = prefill_attention_shared_bytes(head_dim)
            self._gpu.launch(name, grid, WARPS * 32, arguments, shared_bytes)
        return out

    def _run_by_parts(
        self,
        scratch: Scratch,
        out: Array,
        q: Array,
        step: CudaStep,
        cache: LayerPages,
        shape: np.ndarray[Any, Any],
    ) -> None:
        _, num_kv_heads, head_dim = self._sizes
        tiles = step.decode
        size = tiles.num_parts * part_floats(num_kv_heads, head_dim)
        parts = scratch.take("parts", (size,), np.float32)
        name = f"{self._dtype}_{head_dim}"
        rest = (tiles.tiles, tiles.offsets, shape)
        arguments = (parts, q, cache.keys, cache.values, step.tables, *rest)
        grid = (tiles.num_tiles, num_kv_heads, tiles.most_parts)
        shared_bytes = attention_shared_bytes(head_dim)
        self._gpu.launch(f"attention_decode_{name}", grid, 32, arguments, shared_bytes)
        self._gpu.launch(f"attention_merge_{name}", grid[:2], 128, (out, parts, *rest))
