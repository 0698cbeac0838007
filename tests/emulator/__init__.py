"""CUDA kernels on the CPU: builds every `.cu` file for the emulator, launches it on NumPy arrays.

The call form is CuPy's RawKernel: kernel(grid, block, arguments, shared_mem=). A fault that the
emulator sees (a deadlock, lanes that part, a copy nobody waited for) raises EmulatorError.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from worker.kernels.instances import instances, stems

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "worker" / "kernels"
FLAGS = ("-std=c++17", "-O2", "-march=x86-64-v3", "-fPIC", "-Wno-unknown-pragmas", "-pthread")


class EmulatorError(Exception):
    """A launch failed; the message says which kernel, block and thread, and why."""


def build(stem: str, folder: Path, *defines: str) -> Path:
    """Compile one `.cu` file; a library of the same sources and flags is used again."""
    lines = [f'#include "{KERNELS / stem}.cu"']
    lines += [f"EMULATOR_EXPORT({i.symbol}, {i.expression})" for i in instances() if i.stem == stem]
    source = "\n".join(lines) + "\n"
    parts = [source.encode(), " ".join((*FLAGS, *defines)).encode()]
    sources = [*sorted(HERE.glob("*.h")), HERE / "runtime.cpp", *sorted(KERNELS.glob("*.cu*"))]
    parts += [path.read_bytes() for path in sources]
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    library = folder / f"{stem}-{name}.so"
    if not library.exists():
        unit = folder / f"{stem}-{name}.cpp"
        unit.write_text(source)
        header = ["-include", str(HERE / "cuda_emulator.h")]
        _run("g++", *FLAGS, *defines, *header, "-c", str(unit), "-o", f"{unit}.o")
        runtime = [str(HERE / "runtime.cpp"), f"{unit}.o"]
        _run("g++", *FLAGS, "-shared", *runtime, "-o", f"{library}.new")
        Path(f"{library}.new").rename(library)
    return library


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError(f"{' '.join(command[:2])} failed:\n{done.stderr[:4000]}")


class Kernel:
    """One kernel of a library."""

    def __init__(self, library: ctypes.CDLL, symbol: str) -> None:
        self._launch = getattr(library, f"emulate_{symbol}")
        self._launch.argtypes = [ctypes.c_uint] * 6 + [ctypes.c_size_t, ctypes.c_void_p]
        self._error = library.emulator_last_error
        self._error.restype = ctypes.c_char_p

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[Any, ...],
        *,
        shared_mem: int = 0,
    ) -> None:
        """Arrays go as pointers, NumPy scalars by value, None as a null pointer."""
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = (*grid, 1, 1)[:3] + (*block, 1, 1)[:3]
        if self._launch(*sizes, shared_mem, pointers):
            raise EmulatorError(self._error().decode())


def _value(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p()
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, np.generic):
        return ctypes.create_string_buffer(argument.tobytes(), argument.nbytes)
    raise TypeError(f"{argument!r}: pass a NumPy scalar, so that its size is the parameter's")


class Library:
    """All kernels, by symbol; every file is built when its first kernel is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stems = {instance.symbol: instance.stem for instance in instances()}
        self._libraries: dict[str, ctypes.CDLL] = {}

    def get_function(self, symbol: str) -> Kernel:
        """Return a kernel; raise KeyError when there is none of that name."""
        stem = self._stems[symbol]
        if stem not in self._libraries:
            self._libraries[stem] = ctypes.CDLL(str(build(stem, self._folder)))
        return Kernel(self._libraries[stem], symbol)


__all__ = ["EmulatorError", "Kernel", "Library", "build", "stems"]
