"""Compile the C++ kernels into one shared library, named by the hash of all that goes into it.

Knows compilers, flags and files. Imports nothing but the standard library, because the installer
runs it before anything else is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

log = logging.getLogger(__name__)

PARTIAL = "partial-"
SOURCES = Path(__file__).parent
PACKAGED = SOURCES / "packaged.so"
PACKAGED_HASH = SOURCES / "packaged.hash"
"""Names the sources and the kind of machine that PACKAGED was made of, and for."""
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-Wno-psabi"),
    "-ffp-contract=off",  # a product and a sum stay two roundings unless a kernel says fma
)
LINK_FLAGS = ("-shared", "-pthread")
SLIM = ("-fno-asynchronous-unwind-tables", *(("-Wl,-s",) if sys.platform == "linux" else ()))
"""Nobody but a debugger or a sanitizer unwinds through the kernels, or asks for their names."""


class CompileError(Exception):
    """No compiler was found, or it refused; the message is one line."""


def find_compiler(preferred: str = "") -> tuple[str, ...]:
    """Return the command of `preferred`, g++, clang++ or the ziglang package, or raise."""
    for command in (preferred.split(), ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return tuple(command)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise CompileError("no C++ compiler: neither $CXX, g++ nor clang++, nor the package ziglang")


def library_name(compiler: Sequence[str], flags: Sequence[str] = ()) -> str:
    """Return millrace-<hash>.so: sources, flags and the compiler's own name for its version."""
    shown = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    digest = hashlib.sha256(" ".join((*compiler, *flags)).encode())
    digest.update(shown.stdout.encode())
    return f"millrace-{sources_hash(digest.hexdigest())}.so"


def sources_hash(salt: str = "") -> str:
    """Hash all sources, headers and flags."""
    digest = hashlib.sha256(" ".join((salt, *FLAGS, *LINK_FLAGS, *SLIM)).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_packaged() -> Path:
    """Compile beside the sources, for the installer; raise CompileError or OSError."""
    PACKAGED_HASH.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=SOURCES) as scratch:
        built = Path(scratch) / "library.so"
        _compile(find_compiler(), (), built)
        os.replace(built, PACKAGED)
    PACKAGED_HASH.write_text(sources_hash(platform.machine()))
    return PACKAGED


def packaged_library() -> Path | None:
    """Return what the installer compiled, if it was from these sources and for this machine."""
    try:
        mine = sources_hash(platform.machine())
        return PACKAGED if PACKAGED_HASH.read_text() == mine else None
    except OSError:
        return None


def compile_library(folder: Path, preferred: str = "", flags: Sequence[str] = ()) -> Path:
    """Return the library in `folder`, compiled unless it is there; raise CompileError or OSError.

    Many processes may ask at once: one compiles, the others wait for it.
    """
    compiler = find_compiler(preferred)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / library_name(compiler, flags)
    if target.exists():
        return target
    with _locked(folder / ".lock"):
        if not target.exists():
            for left in folder.glob(f"{PARTIAL}*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            log.info("compiling the CPU kernels, once: about half a minute")
            with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as scratch:
                built = Path(scratch) / "library.so"
                _compile(compiler, flags, built)
                os.replace(built, target)
    return target


def _compile(compiler: Sequence[str], flags: Sequence[str], target: Path) -> None:
    """Compile every source beside the others, then link."""
    if not any(word.startswith(("-g", "-fsanitize")) for word in (*compiler, *flags)):
        flags = (*flags, *SLIM)

    def one(source: Path) -> str:
        out = target.parent / f"{source.stem}.o"
        _call([*compiler, *FLAGS, *flags, "-c", str(source), "-o", str(out)])
        return str(out)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(one, sorted(SOURCES.glob("*.cpp"))))
    trim = ("-Wl,--as-needed",) if sys.platform == "linux" else ()
    _call([*compiler, *LINK_FLAGS, *flags, *trim, *objects, "-o", str(target), "-lm"])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if "error" in line] or [
            done.stderr[-200:]
        ]
        raise CompileError(f"{' '.join(command[:3])} … failed: {told[0].strip()}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
