"""The compiled kernels: found or compiled, loaded, and called through ctypes.

Knows the C functions by name. Knows no model.
"""

from __future__ import annotations

import ctypes
import logging
import tempfile
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from common.settings import inherited
from worker.kernels.compile import CompileError, compile_library, packaged_library

log = logging.getLogger(__name__)


class Level(IntEnum):
    """Instruction sets, lowest first; as in `levels.h`."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX = 4


LEVEL_NAMES = ("auto", "amx", "avx512_bf16", "avx512", "avx2", "portable", "reference")


class Library:
    """The functions of one shared library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self.open = self._function("millrace_open", pointer, i32)
        self.close = self._function("millrace_close", None, pointer)
        self.run = self._function("millrace_run", i64, pointer, i32, pointer, i64, pointer)
        self.pack = self._function("millrace_pack", None, pointer, i32, pointer)
        self.contenders = self._function("millrace_contenders", i64, i32, pointer)
        self.nucleus = self._function("millrace_nucleus", i64, i32, pointer)
        self.read = self._function("millrace_read", ctypes.c_float, pointer, i32, pointer, i64)
        self.multiply = self._function("millrace_multiply", i64, pointer, i32, i64, pointer, i64)
        self.kinds = int(self._function("millrace_kinds", ctypes.c_uint64)())
        self.highest_level = Level(self._function("millrace_highest_level", i32)())

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function: Any = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments
        return function  # type: ignore[no-any-return]

    def level(self, wanted: str) -> Level:
        """Return the level named, or the highest for auto; raise ValueError for one not here."""
        if wanted == "auto":
            return self.highest_level
        level = Level[wanted.upper()]
        if level > self.highest_level:
            raise ValueError(
                f"kernel_level is {wanted!r}, this machine has {self.highest_level.name.lower()}"
            )
        return level


def default_cache_dir() -> Path:
    """Return where compiled kernels and packed weights are kept; raise OSError without a home."""
    if given := inherited({}).get("XDG_CACHE_HOME"):
        return Path(given) / "millrace"
    try:
        return Path.home() / ".cache" / "millrace"
    except RuntimeError as error:
        raise OSError(f"no place for a cache: {error}") from error


@cache
def load_library() -> Library | None:
    """Load the packaged library, or the cached one, or compile; None, and one line, without any."""
    compiler = inherited({}).get("CXX", "")  # who names one wants it used
    try:
        return (None if compiler else installed_library()) or compiled_library(compiler)
    except (CompileError, OSError) as error:
        log.warning("SLOW: no compiled kernels, NumPy computes: %s", error)
        return None


def installed_library() -> Library | None:
    """Load what the installer compiled; None without, or when it was linked for another system."""
    path = packaged_library()
    try:
        return Library(path) if path else None
    except OSError as error:
        log.warning("the packaged kernels do not load here: %s", error)
        return None


def compiled_library(compiler: str) -> Library:
    """Load the library of the user's cache, compiled if it is not there.

    Where nothing can be kept it is compiled for this process alone; raises CompileError or OSError.
    """
    try:
        return Library(compile_library(default_cache_dir() / "kernels", compiler))
    except OSError as error:
        log.warning("the CPU kernels are compiled at every start, half a minute: %s", error)
        with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:  # loaded, it may go
            return Library(compile_library(Path(scratch), compiler))
