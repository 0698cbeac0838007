"""CUDA kernels on the CPU: builds every `.cu` file for the emulator, launches it on NumPy arrays.

The call form is CuPy's RawKernel: kernel(grid, block, arguments, shared_mem=). A fault that the
emulator sees (a deadlock, lanes that part, a copy nobody waited for) raises EmulatorError.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from worker.kernels.instances import Instance, instances

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "worker" / "kernels"
FLAGS = ("-std=c++17", "-O2", "-march=x86-64-v3", "-fPIC", "-Wno-unknown-pragmas", "-pthread")
RARE = re.compile(r"(?<!b)f16|_(32|80|96|128)$")
"""Instances that few tests ask for; compiling them all takes a minute."""


class EmulatorError(Exception):
    """A launch failed; the message says which kernel, block and thread, and why."""


def exports(wanted: Iterable[Instance], kernels: Path = KERNELS) -> str:
    """Return a source file that includes the `.cu` files of `wanted` and exports those kernels."""
    chosen = list(wanted)
    lines = [f'#include "{kernels / stem}.cu"' for stem in sorted({i.stem for i in chosen})]
    lines += [f"EMULATOR_EXPORT({i.symbol}, {i.expression})" for i in chosen]
    return "\n".join(lines) + "\n"


def build(source: str, folder: Path, kernels: Path = KERNELS) -> Path:
    """Compile a source file to a library; the same sources are compiled once."""
    name = digest(source, FLAGS, sorted(kernels.glob("*.cu*")))
    library = folder / f"{name}.so"
    with alone(library):
        if not library.exists():
            unit = folder / f"{name}.cpp"
            unit.write_text(source)
            compile_unit(unit, library, *FLAGS, "-shared")
    return library


def digest(source: str, flags: Iterable[str], files: Iterable[Path] = ()) -> str:
    """Return a name for what comes of `source`, `files`, the emulator's own files and `flags`."""
    parts = [source.encode(), " ".join(flags).encode()]
    own = [*sorted(HERE.glob("*.h")), HERE / "runtime.cpp"]
    parts += [path.read_bytes() for path in (*own, *files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Keep other processes that run tests beside this one from making `target` meanwhile."""
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_unit(unit: Path, target: Path, *flags: str) -> None:
    """Compile `unit` with the emulator before it, and link it with the runtime.

    The runtime is compiled without sanitizers, whatever `flags` say.
    """
    header = ("-include", str(HERE / "cuda_emulator.h"))
    plain = [flag for flag in flags if not flag.startswith(("-fsanitize", "-shared"))]
    run("g++", *flags, *header, "-c", str(unit), "-o", f"{unit}.o")
    run("g++", *flags, f"{unit}.o", str(runtime(unit.parent, plain)), "-o", f"{target}.new")
    Path(f"{target}.new").rename(target)


def runtime(folder: Path, flags: list[str]) -> Path:
    """Compile what every library is linked with, once a folder."""
    made = folder / f"runtime-{digest('', flags)}.o"
    with alone(made):
        if not made.exists():
            run("g++", *flags, "-c", str(HERE / "runtime.cpp"), "-o", f"{made}.new")
            Path(f"{made}.new").rename(made)
    return made


def run(*command: str) -> None:
    """Run a compiler; raise EmulatorError with what it says."""
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
        self.launch((*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared_mem), pointers)

    def launch(self, sizes: tuple[int, ...], pointers: Any) -> None:
        """Launch with sizes of grid, block and shared memory, and a place for each argument."""
        if self._launch(*sizes, pointers):
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
    """All kernels, by symbol; each half of a file is built when its first kernel is asked for."""

    def __init__(self, folder: Path, kernels: Path = KERNELS) -> None:
        self._folder = folder
        self._kernels = kernels
        self._stems = {instance.symbol: instance.stem for instance in instances()}
        self._libraries: dict[tuple[str, bool], ctypes.CDLL] = {}

    def get_function(self, symbol: str) -> Kernel:
        """Return a kernel; raise KeyError when there is none of that name."""
        part = (self._stems[symbol], bool(RARE.search(symbol)))
        if part not in self._libraries:
            path = build(exports(self._half(*part), self._kernels), self._folder, self._kernels)
            self._libraries[part] = ctypes.CDLL(str(path))
        return Kernel(self._libraries[part], symbol)

    def _half(self, stem: str, is_rare: bool) -> list[Instance]:
        return [i for i in instances() if i.stem == stem and bool(RARE.search(i.symbol)) == is_rare]
