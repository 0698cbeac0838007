"""Which backend computes on the CPU: the compiled kernels at some level, or the NumPy references.

Knows levels and formats by name.
"""

from __future__ import annotations

import logging

from worker.backends.cpu import CpuBackend
from worker.backends.reference import ReferenceBackend
from worker.kernels.library import LEVEL_NAMES, load_library
from worker.kernels.packed import Format
from worker.kernels.records import Kind

log = logging.getLogger(__name__)

CpuChoice = CpuBackend | ReferenceBackend
FORMATS = {"float32": Format.F32, "bfloat16": Format.BF16, "float16": Format.F16}
ALL_KINDS = sum(1 << kind for kind in Kind)


def choose_backend(kernel_level: str, dtype: str, num_threads: int = 0) -> CpuChoice:
    """Return a backend for weights of `dtype`; raise ValueError for a level that is not here."""
    if kernel_level not in LEVEL_NAMES:
        raise ValueError(f"kernel_level is {kernel_level!r}, allowed: {', '.join(LEVEL_NAMES)}")
    library = None if kernel_level == "reference" else load_library()
    if library is None or library.kinds != ALL_KINDS:
        if dtype != "float32":
            log.warning("the cpu reference computes in float32", extra={"wanted_dtype": dtype})
        return ReferenceBackend(num_threads)
    return CpuBackend(library, library.level(kernel_level), FORMATS[dtype], num_threads)
