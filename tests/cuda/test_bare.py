"""The kernels, their tests and their benchmark need NumPy and pytest, and CuPy on a GPU."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from bench import gpu as bench
from worker.backends.gpu import Gpu

ABSENT = ("msgspec", "google", "zmq", "grpc", "safetensors", "tokenizers", "orjson", "hypothesis")
MODULES = (
    "tests.cuda.test_linear", "tests.cuda.test_attention", "tests.cuda.test_small_kernels",
    "tests.cuda.test_sampling", "tests.cuda.scenes", "tests.cuda.budget",
    "tests.cuda.test_tensors", "tests.cuda.test_loading", "tests.cuda.test_batches",
    "tests.cuda.on_gpu", "worker.backends.cuda_device", "bench.gpu", "bench.gpu_overhead",
    "bench.gpu_peers", "bench.gpu_report",
)  # fmt: skip


def test_imports_without_packages() -> None:
    code = (
        "import sys\n"
        f"for name in {ABSENT}: sys.modules[name] = None\n"
        f"for name in {MODULES}: __import__(name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("quantization", ["none", pytest.param("int8", marks=pytest.mark.kernels)])
def test_the_benchmark_measures_a_toy(gpu: Gpu, quantization: str) -> None:
    args = argparse.Namespace(
        shape="toy",
        quantization=quantization,
        batch=[1, 3],
        context=20,
        prefill=70,
        repeat=1,
        copy_bytes=1 << 18,
        matrix_blocks=1,
        matrix_rounds=2,
    )
    decode, more, prefill = bench.measure(gpu, args)
    assert (decode["kind"], more["batch"], prefill["tokens"]) == ("decode", 3, 70)
    assert decode["floor_ms"] > 0 < more["fraction_of_floor"]
    assert prefill["tflop_per_s"] > 0 < prefill["fraction_of_matrix_rate"]
    assert decode["matrix_tflop_per_s"] >= decode["mma_tflop_per_s"] > 0
