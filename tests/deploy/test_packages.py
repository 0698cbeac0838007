"""What a wheel and a source distribution bring along beside the packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.deploy.expressions import ROOT

pytest.importorskip("setuptools")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "constraints.txt")


def test_the_compose_file_goes_where_the_runner_looks_for_it(tmp_path: Path) -> None:
    for name in FILES:  # without packages: no kernels are compiled
        shutil.copy(ROOT / name, tmp_path)
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
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
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=tmp_path, check=True)
    assert (tmp_path / "wheel" / "docker-compose.yml").exists()
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert "docker-compose.yml" in names
