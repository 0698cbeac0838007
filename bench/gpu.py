"""What a GPU makes of the CUDA kernels: whole decode steps beside their floors, and prefills.

Random weights of real shapes, written on the device; speed does not depend on the values. The floor
of a decode step is the sum over its operations of what costs more: bytes (weights and keys read)
over the copy bandwidth, or products over the rate of the matrix units, both measured in this very
run. Needs NumPy and CuPy alone.

    python -m bench.gpu --shape qwen2.5-1.5b --batch 1 64 --context 640 --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench import gpu_floors as floors
from bench.gpu_floors import Shape
from worker.backends.cuda import CudaBackend
from worker.backends.cuda_cache import CudaKvCache
from worker.backends.cuda_weights import CudaLinear, upload
from worker.backends.gpu import Array, Gpu
from worker.batch import Batch
from worker.kernels.checks import Floats
from worker.kernels.cubins import sources_hash
from worker.kernels.structs import DRAW
from worker.kv_cache import block_bytes
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder, shapes
from worker.models.rope import Rope
from worker.models.wiring import Wiring

BLOCK_SIZE = 16
DTYPE = "bf16"
PATTERN_BYTES = 1 << 20
TOP_P = 0.9
"""Of every draw, at temperature 1."""


SHAPES = {
    "toy": Shape(64, 96, 2, 4, 2, 16, 256, True),
    "qwen2.5-0.5b": Shape(896, 4864, 24, 14, 2, 64, 151936, True),
    "qwen2.5-1.5b": Shape(1536, 8960, 28, 12, 2, 128, 151936, True),
    "qwen2.5-7b": Shape(3584, 18944, 28, 28, 4, 128, 152064, False),
}


class RandomBackend(CudaBackend):
    """Weights are one pattern of small numbers again and again, written on the device."""

    def pack_vector(self, weight: Floats) -> Any:
        if weight.ndim == 1:
            return super().pack_vector(np.ones(weight.shape, np.float32))
        return super().pack_vector(weight)

    def _pack(
        self, weights: Sequence[Floats], biases: Sequence[Floats], is_int8: bool
    ) -> CudaLinear:
        num_outputs, num_inputs = sum(len(w) for w in weights), weights[0].shape[1]
        num_padded = -(-num_outputs // 16) * 16
        num_bytes = (1 if is_int8 else 2) * num_padded * num_inputs
        scale = np.full(num_padded, 0.02 / 64, np.float32)
        linear = CudaLinear(
            weight=pattern(self.gpu, num_bytes).view(np.int8 if is_int8 else np.uint16),
            scale=upload(self.gpu, scale) if is_int8 else None,
            bias=upload(self.gpu, np.zeros(num_padded, np.float32)) if biases else None,
            num_inputs=num_inputs,
            num_outputs=num_outputs,
            num_padded=num_padded,
            is_gated=len(weights) == 2,
        )
        self.weight_bytes += linear.num_bytes
        return linear


class NoWeights:
    """Tensors of the right shape without content: views of a single zero."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = shapes(config)

    def read(self, name: str) -> Any:
        return np.broadcast_to(np.float32(0), self._shapes[name])


def pattern(gpu: Gpu, num_bytes: int) -> Array:
    """Return bfloat16 numbers around ±0.02 on the device; as int8 their bytes are any number."""
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(PATTERN_BYTES // 2) * 0.02).astype(np.float32)
    block = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    target = gpu.empty(num_bytes)
    for start in range(0, num_bytes, PATTERN_BYTES):
        piece = target[start : start + PATTERN_BYTES]
        gpu.write(piece, block[: piece.nbytes])
    return target


def config_of(shape: Shape) -> ModelConfig:
    waves = 1e6 ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
    return ModelConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope=Rope(tuple(waves.tolist()), 1.0),
        windows=(0,) * shape.num_layers,
        tie_word_embeddings=shape.is_tied,
        wiring=Wiring(qkv_bias=True),
        dtype="bfloat16",
    )


class Model:
    """A random model on a device, and batches for it."""

    def __init__(self, gpu: Gpu, shape: Shape, num_tokens: int, is_int8: bool = False) -> None:
        config = config_of(shape)
        sizes = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
        self.gpu = gpu
        self.shape = shape
        self.is_int8 = is_int8
        longest = config.max_position_embeddings
        self.backend = RandomBackend(gpu, DTYPE, sizes, longest, is_int8, shape.is_tied)
        model = Decoder(config, NoWeights(config), self.backend)
        self.num_blocks = -(-num_tokens // BLOCK_SIZE) + 1
        self.model, self.cache = model, CudaKvCache(gpu, config, self.num_blocks, BLOCK_SIZE, DTYPE)
        self.kv_bytes = block_bytes(config, BLOCK_SIZE, config.dtype) / BLOCK_SIZE
        self.forward: Callable[[Batch], Any] = self.backend.bind(model, self.cache.layers)

    def batch(self, counts: Sequence[int], context: int) -> Batch:
        """Sequences with `context` tokens before their new ones, in blocks of their own."""
        width = -(-(context + max(counts)) // BLOCK_SIZE)
        tables = np.arange(len(counts) * width, dtype=np.int32).reshape(len(counts), width)
        tables %= self.num_blocks
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate([np.arange(context, context + n) for n in counts])
        owners = np.repeat(np.arange(len(counts)), counts)
        cells = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        return Batch(
            token_ids=np.zeros(len(positions), np.int32),
            positions=positions.astype(np.int32),
            cells=cells.astype(np.int32),
            query_starts=starts,
            block_tables=tables,
            logit_rows=starts[1:] - 1,
            state_rows=np.zeros(0, np.int32),
            block_size=BLOCK_SIZE,
        )

    def seconds(self, batch: Batch, repeat: int) -> float:
        """Return the median time of a step: a pass, its draws, their way to the host."""
        count = len(batch.logit_rows)
        rows = [(i, 1.0, -np.inf, TOP_P, 0, i, i) for i in range(count)]
        draws = self.gpu.empty(count * DRAW.itemsize)
        self.gpu.write(draws, np.array(rows, DRAW).view(np.uint8))
        tokens = self.gpu.empty(4 * count).view(np.int32)
        times = []
        for _ in range(repeat + 2):
            begin = time.perf_counter()
            logits = self.forward(batch).logits.values
            sizes = (np.int32(self.shape.vocab_size), np.int32(logits.shape[1]))
            self.gpu.launch("sample", (count,), 1024, (tokens, logits, draws, *sizes))
            self.gpu.read(tokens)  # waits
            times.append(time.perf_counter() - begin)
        return float(np.median(times[2:]))


def measure(gpu: Gpu, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per batch size, and one for the prefill."""
    shape = SHAPES[args.shape]
    most = max(args.batch) * (args.context + 64)
    is_int8 = args.quantization == "int8"
    model = Model(gpu, shape, max(most, args.prefill + 64), is_int8)
    speeds = floors.measured(gpu, args.copy_bytes, args.matrix_blocks, args.matrix_rounds)
    facts = {
        "copy_gb_per_s": speeds.bandwidth / 1e9, "matrix_tflop_per_s": speeds.matrix_rate / 1e12,
        "mma_tflop_per_s": speeds.mma_rate / 1e12,
    }  # fmt: skip
    decodes = [decode_row(model, speeds, n, args.context, args.repeat) for n in args.batch]
    prefill = prefill_row(model, speeds, args.prefill, max(args.repeat // 4, 3))
    return [facts | row for row in [*decodes, prefill]]


def decode_row(
    model: Model, speeds: floors.Speeds, batch: int, context: int, repeat: int
) -> dict[str, Any]:
    """Time a token of each sequence, beside what its bytes and products cost at least."""
    seconds = model.seconds(model.batch([1] * batch, context), repeat)
    operations = floors.decode_operations(
        model.shape, batch, context, 1 if model.is_int8 else 2, model.kv_bytes
    )
    floor = speeds.floor(operations)
    return {
        "kind": "decode", "batch": batch, "context": context, "ms": seconds * 1e3,
        "tokens_per_s": batch / seconds, "floor_ms": floor * 1e3,
        "fraction_of_floor": floor / seconds,
    }  # fmt: skip


def prefill_row(model: Model, speeds: floors.Speeds, tokens: int, repeat: int) -> dict[str, Any]:
    """Time a prompt, beside the rate of the matrix units."""
    seconds = model.seconds(model.batch([tokens], 0), repeat)
    rate = floors.prefill_flops(model.shape, tokens) / seconds
    return {
        "kind": "prefill", "tokens": tokens, "ms": seconds * 1e3,
        "tokens_per_s": tokens / seconds, "tflop_per_s": rate / 1e12,
        "fraction_of_matrix_rate": rate / speeds.matrix_rate,
        "fraction_of_mma_rate": rate / speeds.mma_rate,
    }  # fmt: skip


def first_gpu() -> Gpu:
    """Return this machine's first device; end the program where there is none."""
    from worker.backends.cuda_device import CupyGpu, GpuMissing

    try:
        return CupyGpu()
    except GpuMissing as error:
        raise SystemExit(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=640)
    parser.add_argument("--prefill", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--copy-bytes", type=int, default=1 << 30)
    parser.add_argument("--matrix-blocks", type=int, default=8192)
    parser.add_argument("--matrix-rounds", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    gpu = first_gpu()
    facts = {
        "device": gpu.name, "shape": args.shape, "quantization": args.quantization,
        "kernels": sources_hash(),
    }  # fmt: skip
    for row in measure(gpu, args):
        print(json.dumps(facts | row) if args.json else f"{facts | row}")


if __name__ == "__main__":
    main()
