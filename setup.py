"""Compile the CPU kernels while the project is installed, so that no machine does it at first use.

Without a compiler the installation goes on and says so; the sources travel along. `millrace up`
of a wheel reads the compose file beside the packages, where it lies in a clone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CXX = os.environ.get("CXX", "")
COMPOSE = "docker-compose.yml"


class BuildWithKernels(build_py):
    """Leaves the library beside its sources, where an editable install finds it, and packs it."""

    def run(self) -> None:
        if (ROOT / "worker/kernels").exists():  # an image installs dependencies before the code
            compile_kernels()
        super().run()
        compose = ROOT / COMPOSE  # not there when an image installs dependencies
        if compose.exists() and not self.editable_mode:
            self.mkpath(self.build_lib)
            self.copy_file(str(compose), str(Path(self.build_lib) / COMPOSE))


def compile_kernels() -> None:
    """Compile into worker/kernels; a machine without a compiler gets one line."""
    sys.path.insert(0, str(ROOT))
    from worker.kernels.compile import CompileError, compile_packaged

    try:
        sys.stderr.write(f"compiled {compile_packaged(CXX)}\n")
    except (CompileError, OSError) as error:
        sys.stderr.write(f"kernels are not compiled now, but at first use: {error}\n")


setup(cmdclass={"build_py": BuildWithKernels})
