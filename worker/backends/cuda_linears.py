"""How a linear is launched on a GPU: by which kernel, over which grid, with which epilogue.

Knows the kernels of worker/kernels/linear.cu; no model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from worker.backends.cuda_weights import STORAGE, TILE, CudaLinear
from worker.backends.gpu import Array, Gpu, Scratch
from worker.kernels.checks import Floats
from worker.kernels.structs import linear_prefill_shared_bytes

DECODE_TOKENS = 64
"""Up to so many tokens weights are streamed past a tile of tokens; more go by 128 x 128 blocks."""
i32 = np.int32


class Pending(NamedTuple):
    """weight @ x, not launched yet."""

    x: Array
    linear: CudaLinear


class CudaLinears:
    """Launches what is pending, into a buffer of the scratch that it is given."""

    def __init__(self, gpu: Gpu, dtype: str) -> None:
        """dtype: of the activations."""
        self._gpu = gpu
        self._dtype = dtype

    def run(
        self, scratch: Scratch, pending: Pending, name: str, out_dtype: str, epilogue: str
    ) -> Array:
        """Return [tokens, outputs, padded to 16] of out_dtype; epilogue: plain or gated."""
        x, linear = pending
        count, width = len(x), linear.num_padded // (2 if epilogue == "gated" else 1)
        out = scratch.take(name, (count, width), STORAGE[out_dtype])
        if not count:
            return out
        sizes = (i32(count), i32(linear.num_inputs), i32(linear.num_padded))
        arguments = (out, x, linear.weight, linear.scale, linear.bias, *sizes)
        is_int8 = linear.scale is not None
        if self._dtype == "f32":
            grid = (-(-linear.num_padded // 4), -(-count // 8))
            kernel = "linear_f32_int8" if is_int8 else "linear_f32"
            self._gpu.launch(kernel, grid, 128, arguments)
            return out
        stem = "linear_int8" if is_int8 else "linear"
        form = f"{self._dtype}_{out_dtype}_{epilogue}"
        if count > DECODE_TOKENS:
            grid = (-(-linear.num_padded // 128), -(-count // 128))
            shared_bytes = linear_prefill_shared_bytes(is_int8)
            self._gpu.launch(f"{stem}_prefill_{form}", grid, 256, arguments, shared_bytes)
            return out
        widest = 4 if epilogue == "gated" else 8
        tiles = next(t for t in (1, 2, 4, 8) if t * 8 >= count or t == widest)
        grid = (width // TILE, -(-count // (8 * tiles)))
        self._gpu.launch(f"{stem}_decode_{form}_{tiles}", grid, 256, arguments)
        return out

    def sums(self, scratch: Scratch, x: Any) -> Array:
        """Return float32 sums of a linear, for a norm; anything else as it is."""
        return self.run(scratch, x, "sums", "f32", "plain") if isinstance(x, Pending) else x

    def silu_mul(self, scratch: Scratch, gate_up: Pending) -> Array:
        """Return silu(gate) * up: by the linear's own epilogue, or by a kernel after it."""
        if gate_up.linear.is_gated:
            return self.run(scratch, gate_up, "inner", self._dtype, "gated")
        both = self.run(scratch, gate_up, "gate_up", self._dtype, "plain")
        count, width = len(both), gate_up.linear.num_outputs // 2
        out = scratch.take("inner", (count, width), STORAGE[self._dtype])
        grid = (count, -(-width // 256))
        self._gpu.launch(f"silu_mul_{self._dtype}", grid, 256, (out, both, i32(width)))
        return out

    def watched(self, scratch: Scratch, pending: Pending) -> Floats:
        """Launch, wait, and return float32 [tokens, outputs] in the model's order."""
        linear = pending.linear
        sums: Floats = self._gpu.read(self.run(scratch, pending, "watched", "f32", "plain"))
        if linear.is_gated:
            sums = sums.reshape(len(sums), -1, 2, TILE).swapaxes(1, 2).reshape(len(sums), -1)
        return np.ascontiguousarray(sums[:, : linear.num_outputs])
