"""The report of a run on a GPU: counts, verdict, and one clear line where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda import on_gpu

REPORT = """<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="{errors}"
failures="{failures}" skipped="2" tests="9"><testcase name="a"/><testcase name="b"><skipped
message="fills a GPU"/></testcase><testcase name="c"><skipped message="fills a GPU"/></testcase>
</testsuite></testsuites>"""
CLEAN = dict.fromkeys(on_gpu.TOOLS, "clean")
GOOD: dict[str, Any] = {"date": "2026-01-02", "passed": 7, "failed": 0, "skipped": 2, **CLEAN}


def test_a_report_is_counted() -> None:
    counts, reasons = on_gpu.read_report(REPORT.format(errors=1, failures=2))
    assert counts == {"passed": 4, "failed": 3, "skipped": 2}
    assert reasons == ["fills a GPU"]
    assert on_gpu.read_report("")[0]["failed"] == 1, "pytest has not come to its end"


@pytest.mark.parametrize(
    ("change", "is_well"),
    [
        ({}, True),
        ({"racecheck": "not installed"}, True),
        ({"racecheck": "rc 9: 1 hazard"}, False),
        ({"failed": 1}, False),
        ({"passed": 0}, False),
    ],
)
def test_the_verdict(change: dict[str, Any], is_well: bool) -> None:
    summary = GOOD | change
    assert on_gpu.is_well(summary) == is_well
    text = on_gpu.told(summary, ["no peer"])
    assert (
        ("NOT WELL" in text) != is_well and "| memcheck | clean |" in text and "- no peer" in text
    )


def test_without_a_device_it_says_so_in_a_line(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    if pytestconfig.getoption("--cuda"):
        pytest.skip("this machine has one")
    command = [sys.executable, "-m", "tests.cuda.on_gpu", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=on_gpu.ROOT)
    assert done.returncode == on_gpu.NO_DEVICE
    (line,) = done.stderr.splitlines()
    assert line.startswith("no test has run: ") and not (tmp_path / "out").exists()
