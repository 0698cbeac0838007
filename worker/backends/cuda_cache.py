"""Keys and values on a GPU: one array, [layers, 2, blocks, kv heads, block size, head_dim].

Knows sizes and bytes. Who owns which block is the scheduler's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from worker.backends.cuda_weights import STORAGE, upload
from worker.backends.gpu import Array, Gpu
from worker.kernels.checks import Bytes, Ints
from worker.kv_cache import copy_runs
from worker.models.config import ModelConfig

if TYPE_CHECKING:
    from protos import worker as wire

CHUNK_BYTES = 16


class LayerPages(NamedTuple):
    """Keys and values of a layer: dtype [num_blocks, num_kv_heads, block_size, head_dim] each."""

    keys: Array
    values: Array


class CudaKvCache:
    """All pages of all layers in one allocation."""

    def __init__(
        self,
        gpu: Gpu,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_staged: int = 0,
    ) -> None:
        """`num_staged` blocks at a time go to and from the host; 0 = none ever does. Behind the
        last block is a spare one, which padded rows write to."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._gpu = gpu
        self._num_pages = num_blocks + 1
        page = (config.num_kv_heads, block_size, config.head_dim)
        page_bytes = math.prod(page) * np.dtype(STORAGE[dtype]).itemsize
        self._num_planes = 2 * config.num_layers
        block_bytes = self._num_planes * page_bytes
        self._raw = gpu.empty(self._num_pages * block_bytes)
        shape = (config.num_layers, 2, self._num_pages, *page)
        self.layers: Sequence[LayerPages] = [
            LayerPages(*sides) for sides in self._raw.view(STORAGE[dtype]).reshape(shape)
        ]
        self._chunks = page_bytes // CHUNK_BYTES
        self._staged = gpu.empty(num_staged * block_bytes).reshape(num_staged, block_bytes)

    @property
    def num_bytes(self) -> int:
        return int(self._raw.nbytes + self._staged.nbytes)

    def read(self, block_ids: Sequence[int], outs: Sequence[Bytes]) -> None:
        """Copy blocks out of all layers, each to uint8 [block_bytes] of pinned memory."""
        for place in range(0, len(block_ids), len(self._staged)):
            some = block_ids[place : place + len(self._staged)]
            self._move("page_gather", (self._staged, self._raw), some)
            for staged, out in zip(self._staged, outs[place:], strict=False):
                self._gpu.read_into(out, staged)
        self._gpu.wait()

    def write(self, block_ids: Sequence[int], contents: Sequence[Bytes]) -> None:
        """Fill blocks of all layers with what `read` has given; no block is named twice."""
        for place in range(0, len(block_ids), len(self._staged)):
            some = block_ids[place : place + len(self._staged)]
            for staged, content in zip(self._staged, contents[place:], strict=False):
                self._gpu.write(staged, content)
            self._move("page_scatter", (self._raw, self._staged), some)
        self._gpu.wait()  # pinned memory is sent from where it lies

    def _move(self, kernel: str, arrays: tuple[Array, ...], moves: Sequence[int] | Ints) -> None:
        """Launch what moves a block, or copies one to another, for each of `moves`."""
        pages = upload(self._gpu, np.array(moves, np.int32))
        sizes = (np.int32(self._num_pages), np.int32(self._chunks))
        grid = (len(moves), self._num_planes)
        self._gpu.launch(kernel, grid, 128, (*arrays, pages, *sizes))

    def copy(self, copies: Sequence[wire.BlockCopy]) -> None:
        """Copy whole blocks, in order; raise IndexError for a block that does not exist."""
        for run in copy_runs(copies, self.num_blocks):
            self._move("page_copy", (self._raw,), run)
