"""What the kernels may use: registers and static shared memory by target, in budget.json.

`python -m tests.cuda.budget` writes the file anew; read the difference before you commit it.
"""

from __future__ import annotations

import json
from pathlib import Path

from worker.kernels.instances import stems
from worker.kernels.nvrtc import TARGETS, Compiled, compile_stem

FILE = Path(__file__).with_name("budget.json")
Budget = dict[str, dict[str, list[int]]]
"""Target → symbol → [registers, bytes of shared memory]. Spills and stack are never allowed."""


def read() -> Budget:
    budget: Budget = json.loads(FILE.read_text())
    return budget


def used(compiled: Compiled) -> dict[str, list[int]]:
    """Return what the compiler says, by symbol."""
    return {s: [u.registers, u.shared_bytes] for s, u in sorted(compiled.usage.items())}


def main() -> None:
    budget: Budget = {}
    for target in TARGETS:
        budget[target] = {}
        for stem in stems():
            budget[target] |= used(compile_stem(stem, target))
    lines = [
        f' "{target}": {{\n'
        + ",\n".join(f'  "{symbol}": {json.dumps(value)}' for symbol, value in symbols.items())
        + "\n }"
        for target, symbols in budget.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
