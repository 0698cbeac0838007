"""The compiled kernels under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.kernels.compile import compile_library, find_compiler

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g1"
SUITES = (
    "tests/worker/kernels/test_attention_compiled.py",
    "tests/worker/kernels/test_draw_passes.py",
    "tests/worker/kernels/test_huge_tensors.py",
    "tests/worker/kernels/test_linear_compiled.py",
    "tests/worker/kernels/test_operators_compiled.py",
    "tests/worker/kernels/test_pool.py",
    "tests/worker/kernels/test_threads_state.py",
    "tests/worker/test_same_answer.py",
)


def with_runtime() -> dict[str, str]:
    """The environment in which the interpreter can load what is sanitized."""
    shown = [*find_compiler(), "-print-file-name=libasan.so"]
    runtime = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip()
    return {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
    }


def sanitizing_compiler(folder: Path) -> str:
    """What $CXX is. With -O3 a sanitized compilation takes six times as long, 8 minutes."""
    script, compiler = folder / "sanitizing-compiler", " ".join(find_compiler())
    script.write_text(f'#!/bin/sh\nexec {compiler} {SANITIZERS} "$@" -O1\n')
    script.chmod(0o755)
    return f"{script} -g1"  # said here too, so that nothing is stripped


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nothing_is_read_or_written_out_of_place(tmp_path: Path) -> None:
    sanitized = sanitizing_compiler(tmp_path)
    compile_library(tmp_path / "millrace" / "kernels", sanitized)  # before the runtime is there
    environment = {**with_runtime(), "CXX": sanitized, "XDG_CACHE_HOME": str(tmp_path)}
    options = ("-q", "-x", "-p", "no:cacheprovider")
    suites = [sys.executable, "-m", "pytest", *options, *SUITES]
    done = subprocess.run(suites, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nor_by_the_kernels_on_emulated_tiles(tmp_path: Path) -> None:
    flags = ("-DMILLRACE_EMULATE_TILES", *SANITIZERS.split(), "-O1")
    library = str(compile_library(tmp_path, flags=flags))
    for operator in ("linear", "attention"):
        sweep = [sys.executable, "-m", f"tests.support.{operator}_sweep"]
        done = subprocess.run(
            [*sweep, "PORTABLE", library, "AMX", library],
            env=with_runtime(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
