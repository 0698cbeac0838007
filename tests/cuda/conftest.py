"""The device that the kernels are tried on: the emulator, or with --cuda this machine's GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cuda.case import Case
from tests.emulator.device import EmulatedGpu
from worker.backends.gpu import Gpu

ENGINE_NEEDS = ("msgspec", "google.protobuf", "safetensors")
ABSENT = [name for name in ENGINE_NEEDS if find_spec(name.partition(".")[0]) is None]
NEED_THE_ENGINE = [
    "test_cupy_gpu.py",
    "test_engine.py",
    "test_engine_int8.py",
    "test_golden.py",
    "test_host_blocks.py",
    "test_http.py",
    "test_memory.py",
    "test_operators.py",
    "test_pipeline.py",
]
collect_ignore = NEED_THE_ENGINE if ABSENT else []
NEED_NO_GPU = ("test_checks.py", "test_compile.py", "test_cupy_gpu.py")
"""What they prove, they prove on a machine with a compiler."""
BUILD = Path(__file__).parents[2] / "build" / "emulator"


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what a bare machine leaves out."""
    lines = []
    if ABSENT:
        lines = [f"left out: {', '.join(NEED_THE_ENGINE)}; {', '.join(ABSENT)} not installed"]
    if config.getoption("--cuda"):
        lines.append(f"left out: {', '.join(NEED_NO_GPU)}; they are for machines without a GPU")
    return lines


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With a GPU, leave out what is no business of it."""
    return (config.getoption("--cuda") and collection_path.name in NEED_NO_GPU) or None


@pytest.fixture(scope="session")
def emulator_folder() -> Path:
    """Where libraries are kept from run to run, by the hash of their sources."""
    BUILD.mkdir(parents=True, exist_ok=True)
    return BUILD


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config, emulator_folder: Path) -> Gpu:
    if pytestconfig.getoption("--cuda"):
        from worker.backends.cuda_device import CupyGpu, GpuMissing

        try:
            return CupyGpu()
        except GpuMissing as error:
            pytest.exit(f"--cuda: {error}", returncode=3)
    return EmulatedGpu(emulator_folder)


@pytest.fixture
def case(gpu: Gpu, request: pytest.FixtureRequest) -> Iterator[Case]:
    """Arrays and launches of one test; its numbers follow from the test's name."""
    yield Case(gpu, request.node.name)
