"""NumPy's BLAS: one thread, and its name for the fingerprint.

With several threads a BLAS cuts a product by their number, and rounds accordingly. The libraries
that export none of these symbols keep their threads; the fingerprint then says so.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)

DIALECTS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def use_one_thread() -> str:
    """Give the loaded OpenBLAS one thread; return its name and kernel, e.g. `openblas=Haswell`."""
    for path in _libraries():
        library = ctypes.CDLL(str(path))  # already mapped by NumPy: this is another reference
        for dialect in DIALECTS:
            if hasattr(library, dialect.format("set_num_threads")):
                return f"openblas={_limit(library, dialect)}"
    log.warning("no OpenBLAS found behind NumPy: results may depend on its number of threads")
    return "blas=unknown-threads"


def _limit(library: ctypes.CDLL, dialect: str) -> str:
    getattr(library, dialect.format("set_num_threads"))(1)
    core_name = getattr(library, dialect.format("get_corename"))
    core_name.restype = ctypes.c_char_p
    return str(core_name().decode())


def _libraries() -> list[Path]:
    """Return the BLAS libraries of this process: NumPy's own, and what the system mapped."""
    package = Path(np.__file__).parent
    bundled = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    mapped = {line.split(maxsplit=5)[5] for line in lines if "blas" in line and "/" in line}
    return [*bundled, *(Path(name) for name in sorted(mapped) if Path(name) not in bundled)]
