"""Machine code on disk: one file per `.cu` and target, made when an image is built, found at start.

`python -m worker.kernels.cubins DIR` compiles everything into DIR; no GPU is needed. A folder
belongs to the sources it was made of, and is named by their hash. Knows files, not CuPy.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from worker.kernels.compile import NOT_FOR_ALL, OF_OTHERS, is_ours
from worker.kernels.instances import instances, stems
from worker.kernels.nvrtc import OPTIONS, SOURCES, TARGETS, compile_stem

log = logging.getLogger(__name__)

SHIPPED = SOURCES / "cubins"
PTX_TARGET = "compute_90"
"""What the driver of a chip without a cubin of its own, newer than these, can still translate."""


class CubinError(Exception):
    """No machine code fits this chip, or none is safe; the message says what would help."""


class Code(NamedTuple):
    """One file to load, and where its kernels are in it."""

    path: Path
    names: dict[str, str]
    """Plain symbol → name in the file."""


def sources_hash() -> str:
    """Return what the kernels' bits depend on: sources, table of instances, options."""
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in sorted(SOURCES.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for instance in instances():
        digest.update("\0".join(instance).encode())
    return digest.hexdigest()[:16]


def target_of(capability: str) -> str:
    """Return whose cubin runs on a chip, e.g. "90" → "sm_90a"; PTX_TARGET where none does.

    A cubin runs on its own major version, from its minor on; an "a" target on that chip alone.
    """
    major, minor = int(capability[:-1]), int(capability[-1])
    if (major, minor) == (9, 0):
        return "sm_90a"
    if major == 8:
        return "sm_89" if minor >= 9 else "sm_80"
    if major < 8:
        raise CubinError(f"compute capability {major}.{minor} is older than 8.0 (Ampere)")
    return PTX_TARGET


def folder_of(root: Path) -> Path:
    """Return where `build` puts, and `find` looks for, the code of today's sources."""
    return root / sources_hash()


def build(root: Path) -> Path:
    """Compile all files for all targets into a folder below `root`; return it."""
    folder = folder_of(root)
    folder.mkdir(parents=True, exist_ok=True)
    for target in (*TARGETS, PTX_TARGET):
        for stem in stems():
            compiled = compile_stem(stem, target)
            (folder / f"{stem}.{target}").write_bytes(compiled.code)
            (folder / f"{stem}.{target}.json").write_text(json.dumps(compiled.names, indent=1))
    return folder


def find(stem: str, target: str, kept: Path) -> Code:
    """Return the code of one file, shipped or cached; compile it into `kept` where there is none,
    for this process alone where `kept` is not for writing.

    Raises CompileError when it has to be compiled and cannot, CubinError for a cache of others.
    """
    for root in (SHIPPED, kept):
        path = folder_of(root) / f"{stem}.{target}"
        names = path.with_name(f"{path.name}.json")
        with suppress(PermissionError):  # a home of somebody else
            if root is kept:
                _refuse_others(path.parent)
            if path.exists() and names.exists():
                return Code(path, json.loads(names.read_text()))
    _tell(target)
    compiled = compile_stem(stem, target)
    try:
        path.parent.mkdir(NOT_FOR_ALL, parents=True, exist_ok=True)
        _refuse_others(path.parent)
        write_whole(names, json.dumps(compiled.names).encode())
        write_whole(path, compiled.code)
    except OSError as error:
        path = Path(_own_folder(f"{path.parent}: {error.strerror}").name, path.name)
        path.write_bytes(compiled.code)
    return Code(path, compiled.names)


def _refuse_others(folder: Path) -> None:
    if folder.exists() and not is_ours(folder.stat()):
        raise CubinError(f"{folder}: {OF_OTHERS}; remove it")


@cache
def _tell(target: str) -> None:
    """Say once what the wait is for; no info, which scripts do not show to who waits."""
    log.warning("compiling the CUDA kernels for %s, which takes about half a minute", target)


@cache
def _own_folder(why: str) -> tempfile.TemporaryDirectory[str]:
    """Return a folder that ends with this process."""
    log.warning("the CUDA kernels are compiled at every start: %s", why)
    return tempfile.TemporaryDirectory(prefix="millrace-")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is never seen half; another process may be writing the same."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.rename(path)


def main() -> None:
    folder = build(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)
    size = sum(path.stat().st_size for path in folder.iterdir())
    sys.stdout.write(f"{folder}: {len(stems())} files, {size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
