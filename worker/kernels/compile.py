"""Compile the C++ kernels into one shared library, named by the hash of all that goes into it.

Knows compilers, flags and files. Imports nothing but the standard library, because the installer
runs it before anything else is there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

log = logging.getLogger(__name__)

PARTIAL = "partial-"
OF_OTHERS = "another user may write there, so nothing in it is used"
NO_CODE = "mounted noexec, so nothing there can be loaded (XDG_CACHE_HOME names another place)"
NOT_FOR_ALL = 0o755
"""Mode of what we make there, whatever the umask lets others do."""
SOURCES = Path(__file__).parent
PACKAGED = SOURCES / "packaged.so"
PACKAGED_HASH = SOURCES / "packaged.hash"
"""Names the sources and the kind of machine that PACKAGED was made of, and for, and its bytes."""
LOOK_S = 0.2
"""How often whoever waits for compilers looks for a stop."""
UNUSED_S = 30 * 24 * 3600.0
"""A library that nobody asked for in this time is removed by the next compilation."""
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-Wno-psabi"),
    "-ffp-contract=off",  # a product and a sum stay two roundings unless a kernel says fma
)
LINK_FLAGS = ("-shared", "-pthread")
LONGEST = ("linear_int.cpp", "attention.cpp", "linear_float.cpp")
"""Compiled before the others, or one core would be at one of them alone in the end."""
SLIM = ("-fno-asynchronous-unwind-tables", *(("-Wl,-s",) if sys.platform == "linux" else ()))
"""Nobody but a debugger or a sanitizer unwinds through the kernels, or asks for their names."""


class CompileError(Exception):
    """No compiler was found, or it refused; the message is one line."""


def find_compiler(preferred: str = "") -> tuple[str, ...]:
    """Return the command of `preferred`, or of g++, clang++ or the ziglang package.

    `preferred` is the text of $CXX. As with make and pip none replaces it when it names no program:
    that, and no compiler at all, raise CompileError.
    """
    if command := preferred.split():
        if not shutil.which(command[0]):
            raise CompileError(f"$CXX is {preferred!r}, and there is no program {command[0]!r}")
        return tuple(command)
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise CompileError("no C++ compiler: neither g++ nor clang++, nor the package ziglang")


def library_name(compiler: Sequence[str], flags: Sequence[str] = ()) -> str:
    """Return millrace-<hash>: of sources, flags, machine and the compiler's name for its version.

    g++ does not tell its machine there, and a home may be shared by several kinds.
    """
    shown = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    digest = hashlib.sha256(" ".join((platform.machine(), *compiler, *flags)).encode())
    digest.update(shown.stdout.encode())
    return f"millrace-{sources_hash(digest.hexdigest())}"


def sources_hash(salt: str = "") -> str:
    """Hash all sources, headers and flags."""
    digest = hashlib.sha256(" ".join((salt, *FLAGS, *LINK_FLAGS, *SLIM)).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_packaged(preferred: str = "") -> Path:
    """Compile beside the sources, for the installer, unless an earlier one did.

    `preferred` is the text of $CXX. Raises CompileError or OSError.
    """
    if kept := packaged_library():
        return kept
    PACKAGED_HASH.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=SOURCES) as scratch:
        built = Path(scratch) / "library.so"
        _compile(find_compiler(preferred), (), built)
        os.replace(built, PACKAGED)
    PACKAGED_HASH.write_text(_packaged_name())
    return PACKAGED


def packaged_library() -> Path | None:
    """Return what the installer compiled, if it is whole, of these sources and for this machine."""
    try:
        return PACKAGED if PACKAGED_HASH.read_text() == _packaged_name() else None
    except OSError:
        return None


def _packaged_name() -> str:
    return _full_name(sources_hash(platform.machine()), PACKAGED)


def compile_library(folder: Path, preferred: str = "", flags: Sequence[str] = ()) -> Path:
    """Return the library in `folder`, compiled unless it is there; raise CompileError or OSError.

    Many processes may ask at once: one compiles, the others wait for it.
    """
    compiler = find_compiler(preferred)
    folder.mkdir(NOT_FOR_ALL, parents=True, exist_ok=True)
    check_ours(folder)
    _check_loads(folder)
    name = library_name(compiler, flags)
    if kept := _kept(folder, name):
        return kept
    with _locked(folder / ".lock"):
        if kept := _kept(folder, name):
            return kept
        for left in folder.glob(f"{PARTIAL}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        _remove_useless(folder, name)
        # No info, which scripts and `millrace generate` do not show to who waits.
        log.warning("compiling the CPU kernels, which takes about half a minute")
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as scratch:
            built = Path(scratch) / "library.so"
            _compile(compiler, flags, built)
            built.chmod(NOT_FOR_ALL)
            return built.replace(folder / _full_name(name, built))


def _check_loads(folder: Path) -> None:
    """Raise OSError where the system loads no code, before it is compiled for nothing.

    Loading says no more than that a segment cannot be mapped.
    """
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise OSError(errno.EACCES, NO_CODE, str(folder))


def check_ours(path: Path) -> None:
    """Raise PermissionError where another user could put what we would use."""
    if not is_ours(path.stat()):
        raise PermissionError(errno.EPERM, OF_OTHERS, str(path))


def is_ours(found: os.stat_result) -> bool:
    """Whether nobody but us, root and whom our group is can change what was found."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH


def _kept(folder: Path, name: str) -> Path | None:
    """Return the library of that name; none that is damaged, which would kill who loads it."""
    for path in folder.glob(f"{name}-*"):
        with contextlib.suppress(FileNotFoundError):  # damaged, and removed by another process
            if is_ours(path.stat()) and path.name == _full_name(name, path):
                with contextlib.suppress(OSError):  # a cache may be only for reading
                    os.utime(path)
                return path
    return None


def _remove_useless(folder: Path, name: str) -> None:
    """Remove what is called `name` and damaged, and what was of use to nobody for long."""
    oldest = time.time() - UNUSED_S
    for path in folder.glob("millrace-*.so"):
        with contextlib.suppress(OSError):  # what another user keeps here hinders nobody
            if path.name.startswith(f"{name}-") or path.stat().st_mtime < oldest:
                path.unlink()  # who has loaded it keeps it


def _full_name(name: str, library: Path) -> str:
    """Return `name`-<hash of what the library holds>.so."""
    return f"{name}-{hashlib.sha256(library.read_bytes()).hexdigest()[:16]}.so"


def _compile(compiler: Sequence[str], flags: Sequence[str], target: Path) -> None:
    """Compile every source beside the others, then link."""
    if not any(word.startswith(("-g", "-fsanitize")) for word in (*compiler, *flags)):
        flags = (*flags, *SLIM)

    calls = _Calls(target.parent)

    def one(source: Path) -> str:
        out = target.parent / f"{source.stem}.o"
        calls.run([*compiler, *FLAGS, *flags, "-c", str(source), "-o", str(out)])
        return str(out)

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    with ThreadPoolExecutor(cores) as pool, calls:
        compiled = [pool.submit(one, source) for source in _sources()]
        waiting = set(compiled)
        while waiting:  # a signal that comes just before a wait is seen after it only
            done, waiting = wait(waiting, LOOK_S, FIRST_EXCEPTION)
            for one_done in done:
                one_done.result()
        objects = [done.result() for done in compiled]
        trim = ("-Wl,--as-needed",) if sys.platform == "linux" else ()
        calls.run([*compiler, *LINK_FLAGS, *flags, *trim, *objects, "-o", str(target), "-lm"])


def _sources() -> list[Path]:
    """Return what is compiled, in the order in which it is begun."""
    found = {path.name: path for path in SOURCES.glob("*.cpp")}
    first = [found.pop(name) for name in LONGEST if name in found]
    return [*first, *sorted(found.values())]


class _Calls:
    """Commands, each leading a group of its own; who leaves by an exception ends them all.

    So a stop, which raises in the thread that waits, or the first error, waits for no compiler. The
    group, because a driver that ends leaves its compiler behind. Compilers keep what passes between
    their parts in `scratch`, beside what they make: /tmp may be small, full or only for reading.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self._is_over = True
            for process in self._running if kind else ():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def run(self, command: Sequence[str]) -> None:
        """Run `command` to its end; raise CompileError when it fails, OSError for a full disk."""
        with self._lock:
            if self._is_over:
                raise CompileError(f"{command[0]}: not begun")
            process = subprocess.Popen(
                ["env", f"TMPDIR={self._scratch}", *command],
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, process_group=0,
            )  # fmt: skip
            self._running.add(process)
        _, stderr = process.communicate()
        with self._lock:
            self._running.remove(process)
        if process.returncode:
            for number in (errno.ENOSPC, errno.EDQUOT):  # another place may have room
                if os.strerror(number) in stderr:
                    raise OSError(number, os.strerror(number))
            told = [line for line in stderr.splitlines() if "error" in line] or [stderr[-200:]]
            why = told[0].strip() or f"it said nothing and ended with status {process.returncode}"
            raise CompileError(f"{' '.join(command[:3])} … failed: {why}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
