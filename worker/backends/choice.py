"""Which backend computes on the CPU: the compiled kernels at some level, or the NumPy references.

Knows levels and formats by name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from worker.backends.cpu import CpuBackend
from worker.backends.reference import ReferenceBackend
from worker.backends.trial import trusted_level
from worker.kernels.library import LEVEL_NAMES, load_library
from worker.kernels.packed import Format
from worker.kernels.records import Kind

log = logging.getLogger(__name__)

CpuChoice = CpuBackend | ReferenceBackend
FORMATS = {"float32": Format.F32, "bfloat16": Format.BF16, "float16": Format.F16}
ALL_KINDS = sum(1 << kind for kind in Kind)


QUANTIZED = {"int8": Format.INT8, "int4": Format.INT4}


def choose_backend(
    kernel_level: str, dtype: str, quantization: str = "none", num_threads: int = 0
) -> CpuChoice:
    """Return a backend for weights of `dtype`, or quantised ones; raise ValueError for what is
    not here."""
    _check("kernel_level", kernel_level, LEVEL_NAMES)
    _check("quantization", quantization, ("none", *QUANTIZED))
    library = None if kernel_level == "reference" else load_library()
    if library is None or library.kinds != ALL_KINDS:
        if quantization != "none":
            raise ValueError(f"quantization {quantization} needs the compiled kernels")
        if kernel_level not in ("auto", "reference"):
            raise ValueError(f"kernel_level {kernel_level} needs the compiled kernels")
        if dtype != "float32":
            log.warning("the cpu reference computes in float32", extra={"wanted_dtype": dtype})
        return ReferenceBackend(num_threads)
    weights = QUANTIZED.get(quantization, FORMATS[dtype])
    level = trusted_level(library) if kernel_level == "auto" else library.level(kernel_level)
    return CpuBackend(library, level, weights, num_threads)


def choose_kv_dtype(wanted: str, dtype: str, backend: CpuChoice) -> str:
    """Return the type of keys and values: unless told, bfloat16 for a model that is stored so.

    Raises ValueError for one that is not kept here.
    """
    _check("kv_cache_dtype", wanted, ("auto", "float32", "bfloat16"))
    compiled = isinstance(backend, CpuBackend)
    if wanted == "bfloat16" and not compiled:
        raise ValueError("kv_cache_dtype bfloat16 needs the compiled kernels")
    if wanted == "auto":
        return "bfloat16" if compiled and dtype == "bfloat16" else "float32"
    return wanted


def _check(name: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")
