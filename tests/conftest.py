"""Options and fixtures shared by the whole suite."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REFERENCE_DATA = ROOT.parent / "shared"


def pytest_configure() -> None:
    """Take back the signals that a shell lets its background jobs, and nohup its command, ignore:
    the commands under test would ignore them, too."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reference-data", type=Path, default=REFERENCE_DATA)
    parser.addoption("--model", type=Path, help="model folder for the tests marked `model`")
    parser.addoption("--slow", action="store_true", help="run the tests marked `slow` too")
    parser.addoption("--kernels", action="store_true", help="run the tests marked `kernels` too")
    parser.addoption("--cuda", action="store_true", help="run the kernels on this machine's GPU")
    parser.addoption("--golden-rewrite", action="store_true", help="rewrite golden stories")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--model") is None:
        absent = pytest.mark.skip(reason="runs with --model DIR (make test-model MODEL=DIR)")
        for item in items:
            if item.get_closest_marker("model"):
                item.add_marker(absent)
    for mark in ("slow", "kernels"):
        if not config.getoption(f"--{mark}"):
            later = pytest.mark.skip(reason=f"runs with --{mark}")
            for item in items:
                if item.get_closest_marker(mark):  # keywords hold names of folders too
                    item.add_marker(later)


@pytest.fixture(scope="session")
def reference_data(pytestconfig: pytest.Config) -> Path:
    """Folder of real tokenizers, templates and golden outputs; strangers have none."""
    folder: Path = pytestconfig.getoption("--reference-data")
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder} (option --reference-data)")
    return folder


@pytest.fixture(scope="session")
def model_folder(pytestconfig: pytest.Config) -> Path:
    """The user's model folder, of tests marked `model`."""
    folder: Path = pytestconfig.getoption("--model")
    return folder


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Leave the root logger as it was: commands that run in this process set it up anew."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
