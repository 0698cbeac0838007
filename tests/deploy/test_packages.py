"""What a wheel and a source distribution bring along beside the packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.deploy.expressions import ROOT

pytest.importorskip("setuptools")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "constraints.txt")


def test_clean_leaves_nothing_that_git_ignores() -> None:
    clean = subprocess.run(
        ["make", "--no-print-directory", "-n", "clean"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    assert ignored - set(clean.split()) == {"__pycache__", ".venv*"}, "all but those of any place"


def test_no_msgspec_is_allowed_that_ends_the_gateway() -> None:
    """Before 0.22 it refuses `Literal[False]` of the API's structs, wherever they are used."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = (d.partition(">=")[2] for d in project["dependencies"] if d.startswith("msgspec"))
    assert tuple(map(int, oldest.split("."))) >= (0, 22)


COMPILER = """
from pathlib import Path

class CompileError(Exception): pass

def compile_packaged(preferred):
    built = Path(__file__).parent / "packaged.so"
    built.write_bytes(b"made here")
    return built
"""


def built(folder: Path) -> set[str]:
    """Build in `folder`; return the names in the source distribution."""
    for name in (*FILES, "docker-compose.yml"):
        shutil.copy(ROOT / name, folder)
    build = [
        "build_py",
        "--build-lib",
        "wheel",
        "sdist",
        "--dist-dir",
        "dist",
        "--formats",
        "gztar",
    ]
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=folder, check=True)
    (archive,) = (folder / "dist").iterdir()
    with tarfile.open(archive) as packed:
        return {name.partition("/")[2] for name in packed.getnames()}


def test_the_compose_file_goes_where_the_runner_looks_for_it(tmp_path: Path) -> None:
    names = built(tmp_path)  # without packages: no kernels are compiled
    assert (tmp_path / "wheel" / "docker-compose.yml").exists()
    assert "docker-compose.yml" in names


def test_sources_bring_no_kernels_of_this_system_and_no_part_of_the_tests(tmp_path: Path) -> None:
    for package in ("worker", "worker/kernels", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "worker/kernels/compile.py").write_text(COMPILER)
    (tmp_path / "worker/kernels/pool.cpp").touch()
    (tmp_path / "tests/test_online.py").touch()
    names = built(tmp_path)
    assert {"worker/kernels/compile.py", "worker/kernels/pool.cpp"} <= names
    assert not {"worker/kernels/packaged.so", "tests/test_online.py"} & names
    assert (tmp_path / "wheel/worker/kernels/packaged.so").exists()
