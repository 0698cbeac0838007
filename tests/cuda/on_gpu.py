"""All that a machine with a GPU can say of the kernels, by one command: `make test-gpu`.

Runs the tests on the device, then compute-sanitizer's tools over a few launches of every kernel.
The last line is a JSON object; the same, and what was left out, goes to a dated file. NumPy, CuPy
and pytest are enough.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from worker.kernels.cubins import sources_hash

ROOT = Path(__file__).parents[2]
HTTP = "tests/cuda/test_http.py"
TOOLS = ("memcheck", "racecheck", "synccheck")
NAMES = ("cupy-cuda13x", "cupy-cuda12x", "numpy", "pytest")
ASK = (
    "from worker.backends.cuda_device import CupyGpu, GpuMissing\n"
    "try: gpu = CupyGpu(); print(gpu.name, gpu.driver, sep='\\n')\n"
    "except GpuMissing as error: raise SystemExit(str(error))"
)
NO_DEVICE = 3


def main() -> None:
    """Exit with 0 when all that ran is well, 3 when there is no device, else 1."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    args, rest = parser.parse_known_args()
    asked = run([sys.executable, "-c", ASK])
    if asked.returncode:
        sys.stderr.write(f"no test has run: {asked.stderr.strip().splitlines()[-1]}\n")
        sys.exit(NO_DEVICE)
    device, driver = asked.stdout.strip().splitlines()[-2:]
    begin = time.monotonic()
    summary: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(), "device": device, "driver": driver,
        "kernels": sources_hash(), "python": platform.python_version(), **installed(),
    }  # fmt: skip
    tests, left_out = tested(rest)
    summary |= tests | {tool: sanitized(tool) for tool in TOOLS}
    summary["seconds"] = round(time.monotonic() - begin)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{summary['date']}-gpu-tests.md"
    path.write_text(told(summary, left_out))
    sys.stdout.write(json.dumps(summary | {"file": str(path)}) + "\n")
    sys.exit(not is_well(summary))


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, text=True, check=False, **{"capture_output": True} | options
    )


def installed() -> dict[str, str]:
    """Return the versions of what is here."""
    found = {}
    for name in NAMES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def tested(rest: list[str]) -> tuple[dict[str, int], list[str]]:
    """Run the tests on the device; return how many did what, and what was left out and why."""
    counts, reasons = _tested(["tests/cuda", f"--ignore={HTTP}", *rest])
    if find_spec("grpc") is None:
        return counts, [*reasons, f"{HTTP}, which needs the whole project: grpc not installed"]
    more, others = _tested([HTTP])  # alone: its worker claims the device
    return {name: counts[name] + more[name] for name in counts}, sorted({*reasons, *others})


def _tested(arguments: list[str]) -> tuple[dict[str, int], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-c", "tests/cuda/gpu.ini"]
        run([*command, f"--junitxml={report}", *arguments], capture_output=False)
        return read_report(report.read_text() if report.exists() else "")


def read_report(xml: str) -> tuple[dict[str, int], list[str]]:
    """Return the counts of a JUnit report, and the reasons of what was skipped.

    No report is a failure: pytest has not come to its end.
    """
    if not xml:
        return {"passed": 0, "failed": 1, "skipped": 0}, ["pytest wrote no report"]
    suite = next(ElementTree.fromstring(xml).iter("testsuite"))
    total, failed, broken, skipped = (
        int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
    )
    reasons = {skip.get("message", "") for skip in suite.iter("skipped")}
    counts = {"passed": total - failed - broken - skipped, "failed": failed + broken}
    return counts | {"skipped": skipped}, sorted(reasons)


def sanitized(tool: str) -> str:
    """Return what a tool of compute-sanitizer says: clean, not installed, or its last lines."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "not installed"
    command = [program, "--tool", tool, "--error-exitcode", "9"]
    done = run([*command, sys.executable, "-m", "tests.cuda.scenes"])
    if done.returncode == 0:
        return "clean"
    return f"rc {done.returncode}: " + " | ".join((done.stdout + done.stderr).splitlines()[-5:])


def is_well(summary: dict[str, Any]) -> bool:
    """Return whether all that ran is well, and something ran."""
    good = all(summary[tool] in ("clean", "not installed") for tool in TOOLS)
    return good and summary["passed"] > 0 and not summary["failed"]


def told(summary: dict[str, Any], left_out: list[str]) -> str:
    """Return the dated file."""
    rows = [f"| {name} | {value} |" for name, value in summary.items()]
    verdict = "All that ran is well." if is_well(summary) else "NOT WELL."
    skips = [f"- {reason}" for reason in left_out] or ["- nothing"]
    lines = [
        f"# The kernels on a GPU, {summary['date']}", "",
        f"`make test-gpu`. {verdict} `kernels` is the hash of the sources and their options.", "",
        "| | |", "|---|---|", *rows, "", "Left out:", "", *skips,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
