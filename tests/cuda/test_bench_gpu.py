"""The parts of `make bench-gpu`, on a toy: rows, a dated file, a line for what is not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import gpu_overhead, gpu_report
from tests.cuda.on_gpu import ROOT
from worker.backends.gpu import Gpu
from worker.kernels.cubins import sources_hash


@pytest.mark.parametrize("packages", [gpu_overhead.WORKER_NEEDS, ("a_package_of_nobody",)])
def test_a_loop_tells_what_the_host_costs(
    gpu: Gpu, packages: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes alone, and the worker's own steps where its packages are installed."""
    monkeypatch.setattr(gpu_overhead, "WORKER_NEEDS", packages)
    row = gpu_overhead.overhead_row(gpu, "toy", 3, 20, 3)
    has_worker = packages != ("a_package_of_nobody",) and _is_installed("msgspec")
    assert row["loop"] == ("worker" if has_worker else "passes")
    assert 0 < row["device_ms"] < row["ms"]
    assert 0 < row["host_share"] < 1


def _is_installed(name: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {name}"], check=False).returncode == 0


def test_the_file_has_a_table_a_kind_and_names_the_kernels() -> None:
    rows = [
        {"shape": "toy", "device": "chip", "kernels": "x", "kind": "decode", "ms": 1.23456},
        {"shape": "toy", "kind": "peer", "note": "not compared"},
        {"shape": "toy", "kind": "decode", "ms": 2.0, "floor_ms": 1.5},
    ]
    text = gpu_report.told(rows, ["bench.gpu toy: no memory"], "2026-01-02")
    assert f"on chip; kernels {sources_hash()}" in text
    assert "## decode\n\n| shape | ms | floor_ms |\n| --- | --- | --- |\n" in text
    assert "| toy | 1.235 |  |\n| toy | 2 | 1.5 |" in text
    assert "| toy | not compared |" in text and "- bench.gpu toy: no memory" in text


def test_without_a_device_nothing_is_written(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--cuda"):
        pytest.skip("this machine has one")
    command = [sys.executable, "-m", "bench.gpu_report", "--shapes", "toy", "--out"]
    done = subprocess.run(
        [*command, str(tmp_path / "out")], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing was measured: bench.gpu toy: ")


def test_a_peer_that_is_not_here_is_said_in_a_line() -> None:
    code = (
        "import sys, runpy; from importlib import util; found = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'torch' else found(name, *a)\n"
        "sys.argv = ['peers', '--json']; runpy.run_module('bench.gpu_peers', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    (row,) = (json.loads(line) for line in done.stdout.splitlines())
    assert row["kind"] == "peer" and row["note"].startswith("not compared with transformers: torch")
