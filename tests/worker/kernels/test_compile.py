"""Compiling: once for many, named by all that goes in, and one clear line where it cannot be."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import stat
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.owners import give_away
from worker.backends.choice import choose_backend
from worker.backends.reference import ReferenceBackend
from worker.kernels import compile as compiling
from worker.kernels import cubins, nvrtc
from worker.kernels import library as libraries
from worker.kernels.compile import CompileError, compile_library, find_compiler, library_name
from worker.kernels.library import Level, compiled_library, load_library
from worker.kernels.nvrtc import Compiled

FAKE = """#!/bin/sh
case "$*" in *--version*) echo fake 1.0; exit 0;; esac
echo "$*" >> {calls}
while [ $# -gt 1 ]; do if [ "$1" = -o ]; then echo built > "$2"; fi; shift; done
"""


@pytest.fixture
def fake(tmp_path: Path) -> tuple[str, Path]:
    """A compiler that writes down how it was called."""
    compiler, calls = tmp_path / "fake-c++", tmp_path / "calls"
    compiler.write_text(FAKE.format(calls=calls))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    return str(compiler), calls


@contextmanager
def loading_anew(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Within, and behind it, the library is looked for as if nobody had."""
    load_library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            yield
    finally:
        load_library.cache_clear()


def test_many_at_once_compile_once(fake: tuple[str, Path], tmp_path: Path) -> None:
    compiler, calls = fake
    (tmp_path / "cache" / "partial-killed" / "deep").mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: compile_library(tmp_path / "cache", compiler), range(4)))
    [path] = made
    assert path.read_text() == "built\n" and path.name.startswith(f"{library_name([compiler])}-")
    linked = [line for line in calls.read_text().splitlines() if "-shared" in line]
    assert len(linked) == 1
    assert {p.name for p in path.parent.iterdir()} == {path.name, ".lock"}


def test_who_waits_for_compilers_is_told_once(
    fake: tuple[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a warning: scripts and `millrace generate` show no others."""
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            compile_library(tmp_path / "cache", fake[0])
    [told] = caplog.records
    assert told.getMessage().startswith("compiling the CPU kernels, ")


def test_what_a_process_without_umask_keeps_is_its_own(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers and services may run with a umask of 0."""
    monkeypatch.setattr(cubins, "compile_stem", lambda stem, target: Compiled(b"code", {}, ""))
    monkeypatch.setattr(cubins, "SHIPPED", tmp_path / "nothing")
    before = os.umask(0)
    try:
        path = compile_library(tmp_path / "kernels", fake[0])
        fake[1].unlink()
        assert compile_library(tmp_path / "kernels", fake[0]) == path and not fake[1].exists()
        cubins.find("linear", "sm_90", tmp_path / "cubins")
    finally:
        os.umask(before)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_what_others_may_have_put_there_is_not_run(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreign: bool
) -> None:
    cache = tmp_path / "cache"
    compile_library(cache, fake[0])
    cache.chmod(0o775)  # a group is its owner's choice
    compile_library(cache, fake[0])
    if is_foreign:
        give_away(cache, monkeypatch)
    else:
        cache.chmod(0o1777)
    with pytest.raises(PermissionError, match="another user may write there"):
        compile_library(cache, fake[0])


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_library_of_another_user_is_compiled_again(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreign: bool
) -> None:
    path = compile_library(tmp_path / "cache", fake[0])
    fake[1].unlink()
    if is_foreign and os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        path.chmod(0o666)
    assert compile_library(tmp_path / "cache", fake[0]) == path and fake[1].exists()
    assert compiling.is_ours(path.stat())


def test_machine_code_that_others_may_have_put_there_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = Compiled(b"code", {"a": "b"}, "")
    monkeypatch.setattr(cubins, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(cubins, "compile_stem", lambda stem, target: compiled)
    for _ in range(2):
        code = cubins.find("linear", "sm_80", tmp_path / "cache")
        assert (code.path.read_bytes(), code.names) == (b"code", {"a": "b"})
    give_away(code.path.parent, monkeypatch)
    with pytest.raises(cubins.CubinError, match="another user may write there"):
        cubins.find("linear", "sm_80", tmp_path / "cache")


def test_machine_code_that_cannot_be_kept_is_compiled_for_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits is told what for, once."""
    monkeypatch.setattr(cubins, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(cubins, "compile_stem", lambda stem, _: Compiled(stem.encode(), {}, ""))
    cubins._tell.cache_clear()
    home = tmp_path / "home"
    home.write_text("no folder can be made here")
    codes = [cubins.find(stem, "sm_80", home / "cubins") for stem in ("linear", "rope")]
    assert [code.path.read_bytes() for code in codes] == [b"linear", b"rope"]
    first, second = caplog.messages
    assert "compiling the CUDA kernels for sm_80" in first and "at every start" in second


def test_the_compiler_of_cuda_is_found_among_a_users_own_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert library in nvrtc._candidates()


@pytest.mark.parametrize("damage", ["", "buil", "Built\n"])
def test_a_damaged_library_is_compiled_again(
    fake: tuple[str, Path], tmp_path: Path, damage: str
) -> None:
    path = compile_library(tmp_path / "cache", fake[0])
    fake[1].unlink()
    assert compile_library(tmp_path / "cache", fake[0]) == path and not fake[1].exists()
    path.write_text(damage)
    assert compile_library(tmp_path / "cache", fake[0]) == path
    assert path.read_text() == "built\n" and "-shared" in fake[1].read_text()


def test_a_damaged_library_that_another_process_removes_meanwhile_is_compiled_again(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compile_library(tmp_path / "cache", fake[0])
    path.write_text("")
    is_ours = compiling.is_ours

    def too_late(found: os.stat_result) -> bool:
        if not found.st_size:
            path.unlink(missing_ok=True)
        return is_ours(found)

    monkeypatch.setattr(compiling, "is_ours", too_late)
    assert compile_library(tmp_path / "cache", fake[0]) == path


def test_a_library_that_nobody_uses_is_removed(fake: tuple[str, Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    used, unused = (compile_library(cache, fake[0], [flag]) for flag in ("-O1", "-O2"))
    for path in (used, unused):
        os.utime(path, (0, 0))
    assert compile_library(cache, fake[0], ["-O1"]) == used
    new = compile_library(cache, fake[0])
    assert set(cache.glob("*.so")) == {used, new}


STUCK = """#!/bin/sh
case "$*" in *--version*) echo stuck 1.0; exit 0;; esac
case "$*" in *attention.cpp*) echo error: no >&2; exit 1;; esac
sleep 1000 &
echo $! >> {calls}
wait
"""


def test_the_first_error_waits_for_no_compiler(tmp_path: Path) -> None:
    compiler, calls = tmp_path / "stuck-c++", tmp_path / "calls"
    compiler.write_text(STUCK.format(calls=calls))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(CompileError, match="error: no"):
        compile_library(tmp_path / "cache", str(compiler))
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".lock"}
    for pid in calls.read_text().split() if calls.exists() else ():
        assert has_ended(int(pid)), "what a compiler has started ends with it"


def test_a_full_disk_is_no_fault_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So the library is compiled elsewhere, for the process alone."""
    compiler, cache = tmp_path / "c++", tmp_path / "millrace" / "kernels"
    full = f"{compiler}.s: Fatal error: can't write 68 bytes: 'No space left on device'"
    words = FAKE.format(calls=os.devnull).splitlines()
    words.insert(2, f'case "$*" in *{cache}*) echo "{full}" >&2; exit 1;; esac')
    compiler.write_text("\n".join(words))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(OSError, match="No space left on device"):
        compile_library(cache, str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(libraries, "Library", lambda path: path.read_text())
    with caplog.at_level(logging.WARNING):
        assert compiled_library(str(compiler)) == "built\n"
    assert "compiled at every start" in caplog.text and "No space left" in caplog.text


def test_nothing_is_compiled_where_nothing_can_be_loaded(
    fake: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a cache and a /tmp mounted noexec both took their half minute, and no word named why."""
    noexec = types.SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda _: noexec)
    monkeypatch.setattr(libraries, "packaged_library", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", fake[0])
    with loading_anew(caplog):
        assert load_library() is None
    kept, none = caplog.messages
    assert not fake[1].exists(), "the compiler was not called"
    assert "every start" in kept and "noexec" in kept and str(tmp_path / "cache") in kept
    assert "NumPy computes" in none and "noexec" in none and "XDG_CACHE_HOME" in none


def test_what_passes_between_parts_of_a_compiler_lies_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /tmp was full or only for reading NumPy computed, whatever room the cache had."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    compiler, places = tmp_path / "c++", tmp_path / "places"
    words = FAKE.format(calls=os.devnull).splitlines()
    words.insert(2, f'echo "$TMPDIR" >> {places}')
    compiler.write_text("\n".join(words))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    compile_library(tmp_path / "cache", str(compiler))
    assert {Path(place).parent for place in places.read_text().split()} == {tmp_path / "cache"}


def has_ended(pid: int) -> bool:
    """Wait a while for a process that was killed, and is not ours to reap."""
    stat_file = Path(f"/proc/{pid}/stat")
    for _ in range(500):
        try:
            if stat_file.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_the_name_follows_sources_flags_and_compiler(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = library_name([fake[0]])
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(platform, "machine", lambda: "another")
        assert library_name([fake[0]]) != plain, "a home may be shared by machines"
    assert library_name([fake[0]]) == plain != library_name([fake[0]], ["-O0"])
    (tmp_path / "one.cpp").write_text("int a;")
    monkeypatch.setattr(compiling, "SOURCES", tmp_path)
    changed = library_name([fake[0]])
    (tmp_path / "one.cpp").write_text("int b;")
    assert len({plain, changed, library_name([fake[0]])}) == 3


def test_what_takes_longest_is_compiled_first(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    compile_library(tmp_path / "library", fake[0])
    begun = [line for line in fake[1].read_text().splitlines() if " -c " in line]
    for name, call in zip(compiling.LONGEST, begun, strict=False):
        assert f"/{name} " in call
    assert len(begun) == len(list(compiling.SOURCES.glob("*.cpp")))


@pytest.mark.parametrize("option", ["-g", "-fsanitize=address", ""])
def test_only_who_looks_into_the_library_gets_its_symbols(
    fake: tuple[str, Path], tmp_path: Path, option: str
) -> None:
    compile_library(tmp_path / "cache", f"{fake[0]} {option}")
    slim = [compiling.SLIM[0] in line for line in fake[1].read_text().splitlines()]
    assert slim == [not option] * len(slim)


def test_a_preferred_compiler_comes_first_and_none_is_an_error(
    fake: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_compiler(f"{fake[0]} -m64") == (fake[0], "-m64")
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match="no C\\+\\+ compiler"):
        find_compiler()


def test_a_preferred_compiler_that_is_not_there_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = r"\$CXX is 'no-such-c\+\+ -m64', and there is no program 'no-such-c\+\+'"
    assert find_compiler(), "another one is here"
    with pytest.raises(CompileError, match=words):
        find_compiler("no-such-c++ -m64")
    assert find_compiler(" ") == find_compiler(), "empty names none"
    monkeypatch.setenv("CXX", "no-such-c++ -m64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with loading_anew(caplog):
        assert load_library() is None
    [told] = caplog.messages
    assert "NumPy computes: $CXX is 'no-such-c++ -m64'" in told
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"failed: .*no-such-flag") as raised:
        compile_library(tmp_path, flags=["--no-such-flag"])
    assert "\n" not in str(raised.value)
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_without_any_library_numpy_computes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(compiler: str) -> Path:
        raise CompileError("no compiler here")

    monkeypatch.setattr(libraries, "packaged_library", lambda: None)
    monkeypatch.setattr(libraries, "compiled_library", refuse)
    with loading_anew(caplog):
        assert isinstance(choose_backend("auto", "float32"), ReferenceBackend)
        with pytest.raises(ValueError, match="int8 needs the compiled kernels"):
            choose_backend("auto", "float32", "int8")
        with pytest.raises(ValueError, match="kernel_level avx2 needs the compiled kernels"):
            choose_backend("avx2", "float32")
        assert isinstance(choose_backend("reference", "float32"), ReferenceBackend)
    [told] = (message for message in caplog.messages if "no compiled kernels" in message)
    assert "no compiler here" in told


def test_where_nothing_can_be_kept_it_is_compiled_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there, folders = load_library(), list[Path]()
    (tmp_path / "taken").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert there is not None

    def compiled(folder: Path, preferred: str = "") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        folders.append(folder)
        return Path(shutil.copy(there.path, folder))

    monkeypatch.setattr(libraries, "compile_library", compiled)
    with caplog.at_level(logging.WARNING):
        library = libraries.compiled_library("")
    assert library.highest_level is there.highest_level
    assert len(folders) == 1 and not folders[0].exists()
    assert "compiled at every start" in caplog.text and str(tmp_path / "taken") in caplog.text


def test_a_packaged_library_of_another_system_is_left_for_a_compiled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = load_library()
    assert there is not None
    (foreign := tmp_path / "packaged.so").write_bytes(b"linked for a newer libc")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(libraries, "packaged_library", lambda: foreign)
    monkeypatch.setattr(libraries, "compiled_library", lambda compiler: there)
    with loading_anew(caplog):
        assert load_library() is there
    assert "packaged kernels do not load here" in caplog.text and str(foreign) in caplog.text


def test_the_packaged_library_counts_for_its_own_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "PACKAGED", tmp_path / "packaged.so")
    monkeypatch.setattr(compiling, "PACKAGED_HASH", tmp_path / "packaged.hash")
    assert compiling.packaged_library() is None
    (tmp_path / "packaged.so").write_text("library")
    name = compiling._full_name(
        compiling.sources_hash(platform.machine()), tmp_path / "packaged.so"
    )
    (tmp_path / "packaged.hash").write_text(name)
    assert compiling.packaged_library() == tmp_path / "packaged.so"
    (tmp_path / "packaged.so").write_text("lib")
    assert compiling.packaged_library() is None, "cut off, it would end whoever loads it"
    (tmp_path / "packaged.so").write_text("library")
    (tmp_path / "packaged.hash").write_text(name.replace(name[:16], "older"))
    assert compiling.packaged_library() is None


def test_a_level_that_is_not_here_is_refused() -> None:
    library = load_library()
    assert library is not None
    assert library.level("auto") is library.highest_level
    assert library.level("portable") is Level.PORTABLE
    if library.highest_level is not Level.AMX:
        with pytest.raises(ValueError, match="kernel_level is 'amx', this machine has"):
            library.level("amx")
    with pytest.raises(ValueError, match="kernel_level is 'mmx', allowed: auto, amx"):
        choose_backend("mmx", "float32")


def test_a_compiler_that_fails_without_a_word_is_told(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="it said nothing and ended with status 1$"):
        compile_library(tmp_path, "false")


def test_an_installer_that_comes_again_does_not_compile_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "PACKAGED", packaged := tmp_path / "packaged.so")
    monkeypatch.setattr(compiling, "PACKAGED_HASH", tmp_path / "packaged.hash")
    compiled: list[Path] = []

    def compile_once(_: object, __: object, out: Path) -> None:
        out.write_text("library")
        compiled.append(out)

    monkeypatch.setattr(compiling, "_compile", compile_once)
    assert compiling.compile_packaged() == compiling.compile_packaged() == packaged
    assert len(compiled) == 1
    packaged.write_text("lib")  # damaged
    compiling.compile_packaged()
    assert len(compiled) == 2
    packaged.unlink()
    with pytest.raises(CompileError, match="there is no program '/nowhere/c'"):
        compiling.compile_packaged("/nowhere/c")
