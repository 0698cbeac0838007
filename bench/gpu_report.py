"""All timings of a GPU by one command, `make bench-gpu`: every shape beside its floors, what the
host costs between steps, and transformers on the same device where it is installed.

Each part is a process of its own, so that memory is given back. Prints a JSON object a row, and
writes a dated file that names the hash of the kernels' sources. NumPy and CuPy are enough.

    python -m bench.gpu_report --shapes qwen2.5-0.5b --out bench/results
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu import SHAPES
from worker.kernels.cubins import sources_hash

PARTS = (
    ("bench.gpu",), ("bench.gpu", "--quantization", "int8"), ("bench.gpu_overhead",),
    ("bench.gpu_peers",),
)  # fmt: skip
Row = dict[str, Any]


def rows_of(part: tuple[str, ...], shape: str) -> tuple[list[Row], str]:
    """Run a part; return its rows, and why it failed or ""."""
    command = [sys.executable, "-m", *part, "--shape", shape, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    rows = [{"shape": shape} | json.loads(line) for line in told]
    for row in rows:
        print(json.dumps(row), flush=True)
    if not done.returncode:
        return rows, ""
    said = done.stderr.strip().splitlines()
    return rows, f"{' '.join(part)} {shape}: {said[-1] if said else f'rc {done.returncode}'}"


def told(rows: list[Row], failures: list[str], date: str) -> str:
    """Return the dated file: a table for each kind of row."""
    device = next((row["device"] for row in rows if "device" in row), "no device")
    lines = [
        f"# Timings of a GPU, {date}", "",
        f"`make bench-gpu` on {device}; kernels {sources_hash()}. Random weights of real shapes.",
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row for row in rows if row["kind"] == kind]
        columns = list(dict.fromkeys(name for row in some for name in row))
        columns = [name for name in columns if name not in ("kind", "device", "kernels")]
        lines += ["", f"## {kind}", "", _line(columns), _line("---" for _ in columns)]
        lines += [_line(_cell(row.get(name, "")) for name in columns) for row in some]
    if failures:
        lines += ["", "## Failed", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES)[1:])
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    date = datetime.now(UTC).date().isoformat()
    rows: list[Row] = []
    failures: list[str] = []
    for shape in args.shapes:
        for part in PARTS:
            some, failure = rows_of(part, shape)
            rows += some
            failures += [failure] if failure else []
    measured = [row for row in rows if "ms" in row]
    if not measured:
        raise SystemExit("nothing was measured: " + (failures or ["no part has a row"])[0])
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{date}-gpu.md"
    path.write_text(told(rows, failures, date))
    print(json.dumps({"kind": "file", "path": str(path), "failed": failures}))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
