"""From a model's sizes to a CUDA backend, or the reason why there is none.

Knows the names of settings and dtypes. CuPy is imported only when no device is passed in.
"""

from __future__ import annotations

import time

from worker.backends.cuda import CudaBackend
from worker.backends.gpu import Gpu
from worker.errors import KernelError
from worker.kernels.cubins import CubinError
from worker.kernels.nvrtc import CompileError
from worker.models.config import ModelConfig

QUANTIZATIONS = ("none", "int8")
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def open_cuda(
    config: ModelConfig, dtype: str, quantization: str, kv_cache_dtype: str, gpu: Gpu | None = None
) -> CudaBackend:
    """Return a backend on `gpu`, or on the first device here.

    Raises ValueError, which names the setting or the size, for what no kernel was built for.
    """
    if quantization not in QUANTIZATIONS:
        allowed = ", ".join(QUANTIZATIONS)
        raise ValueError(f"quantization is {quantization!r}, on cuda allowed: {allowed}")
    if kv_cache_dtype not in ("auto", dtype):
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}, on cuda allowed: auto, {dtype}")
    sizes = (config.num_heads, config.num_kv_heads, config.head_dim)
    try:
        begin = time.perf_counter()
        device = gpu or _first_gpu()
        modules_s = time.perf_counter() - begin
        backend = CudaBackend(
            device,
            DTYPES[dtype],
            sizes,
            config.max_position_embeddings,
            is_int8=quantization == "int8",
            is_tied=config.tie_word_embeddings,
        )
        backend.loading.seconds["modules"] = modules_s
        return backend
    except (KernelError, CubinError, CompileError) as error:
        raise ValueError(f"device cuda: {error}") from error


def _first_gpu() -> Gpu:
    from worker.backends.cuda_device import CupyGpu, GpuMissing

    try:
        gpu = CupyGpu()
    except GpuMissing as error:
        raise ValueError(f"device cuda: {error}") from error
    gpu.load_all()
    return gpu
