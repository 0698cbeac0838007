"""Compiles `.cu` files to machine code with NVRTC, with or without a GPU or a driver at hand.

Through the library's own C interface: CuPy's would ask for a device first. Used when an image is
built, by the tests, and at start when no shipped cubin fits the chip. Knows no launch.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from worker.kernels.instances import instances

SOURCES = Path(__file__).parent
TARGETS = ("sm_80", "sm_89", "sm_90a")
"""Ampere (A100), Ada (L4, RTX 40), Hopper (H100, H200) with its own instructions."""
OPTIONS = ("-std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")


class CompileError(Exception):
    """NVRTC is missing or refused the source; the message is its log."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One `.cu` file for one target."""

    code: bytes
    """A cubin, or PTX for a compute_ target."""
    names: dict[str, str]
    """Plain symbol → the mangled name in it."""
    log: str
    """What the compiler and the assembler said."""


def compile_stem(stem: str, target: str, defines: Sequence[str] = ()) -> Compiled:
    """Compile all instances of one file, e.g. ("linear", "sm_90a"); raise CompileError."""
    nvrtc = _library()
    wanted = [instance for instance in instances() if instance.stem == stem]
    program = ctypes.c_void_p()
    source = (SOURCES / f"{stem}.cu").read_bytes()
    name = f"{stem}.cu".encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
    try:
        for instance in wanted:
            nvrtc.nvrtcAddNameExpression(program, instance.expression.encode())
        options = [*OPTIONS, f"--gpu-architecture={target}", f"-I{SOURCES}", *defines]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
        log = _text(nvrtc, program, "ProgramLog").decode(errors="replace")
        if failed:
            complaints = [line for line in log.splitlines() if "ptxas info" not in line]
            raise CompileError("\n".join([f"{stem}.cu for {target}:", *complaints[-40:]]))
        names = {i.symbol: _lowered(nvrtc, program, i.expression) for i in wanted}
        code = _text(nvrtc, program, "PTX" if target.startswith("compute_") else "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Compiled(code, names, log)


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, expression: str) -> str:
    found = ctypes.c_char_p()
    nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(found))
    assert found.value is not None, expression
    return found.value.decode()


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw if what == "CUBIN" else buffer.value


@cache
def _library() -> ctypes.CDLL:
    for path in _candidates():
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    raise CompileError("NVRTC is not here: pip install nvidia-cuda-nvrtc-cu12, or a CUDA toolkit")


def _candidates() -> Iterable[Path | str]:
    for folder in dict.fromkeys(sys.path):  # a user's own packages, too
        yield from sorted(Path(folder).glob("nvidia/**/libnvrtc.so.*"))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")
    yield from sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so.*"))
