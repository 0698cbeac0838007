"""Launches as a file, and the program that plays them again under a sanitizer."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator import HERE, KERNELS, compile_unit, exports
from worker.kernels.instances import instances

FLAGS = ("-std=c++17", "-O1", "-g", "-Wno-unknown-pragmas", "-pthread")


class Recording:
    """What was launched: symbols, sizes, and the arguments as they were before the launch."""

    def __init__(self) -> None:
        self._launches: list[bytes] = []
        self.symbols: set[str] = set()

    def add(
        self,
        symbol: str,
        grid: tuple[int, ...],
        num_threads: int,
        arguments: tuple[Any, ...],
        shared_bytes: int,
    ) -> None:
        self.symbols.add(symbol)
        sizes = (*grid, 1, 1)[:3] + (num_threads, 1, 1)
        parts = [struct.pack("<I", len(symbol)), symbol.encode(), struct.pack("<6I", *sizes)]
        parts.append(struct.pack("<QI", shared_bytes, len(arguments)))
        parts += [_argument(argument) for argument in arguments]
        self._launches.append(b"".join(parts))

    def write(self, path: Path) -> None:
        path.write_bytes(struct.pack("<I", len(self._launches)) + b"".join(self._launches))


def _argument(value: Any) -> bytes:
    if value is None:
        return struct.pack("<BQ", 0, 0)
    kind = 1 if isinstance(value, np.ndarray) else 2
    return struct.pack("<BQ", kind, value.nbytes) + value.tobytes()


def replay(
    recording: Recording, sanitizer: str, folder: Path, kernels: Path = KERNELS, seed: int = 0
) -> str:
    """Build the recorded kernels with -fsanitize=`sanitizer`, run them; return what it reports.

    An empty string is a clean run.
    """
    wanted = [i for i in instances() if i.symbol in recording.symbols]
    rows = [f'  {{"{i.symbol}", emulate_{i.symbol}}},' for i in wanted]
    driver = f'#include "{HERE / "driver.cpp"}"\n'
    table = "\n".join(["const Entry KERNELS[] = {", *rows, "  {nullptr, nullptr}};"])
    unit, program = folder / "driver.cpp", folder / "driver"
    unit.write_text(exports(wanted, kernels) + driver + table + "\n")
    compile_unit(unit, program, *FLAGS, f"-fsanitize={sanitizer}")
    recording.write(folder / "launches")
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "EMULATOR_SEED": str(seed)}
    # The thread sanitizer of gcc 12 cannot place its tables where addresses are much randomised.
    command = ["setarch", "-R", str(program), str(folder / "launches")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
