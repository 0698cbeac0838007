"""What the kernels may use: registers and static shared memory by target, in budget.json.

`python -m tests.cuda.budget` writes the file anew; read the difference before you commit it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from worker.kernels.instances import stems
from worker.kernels.nvrtc import TARGETS, Compiled, compile_stem

FILE = Path(__file__).with_name("budget.json")
Budget = dict[str, dict[str, list[int]]]
"""Target → symbol → [registers, bytes of shared memory]. Spills and stack are never allowed."""


ENTRY = re.compile(
    r"entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<spill>\d+) bytes spill"
    r" stores.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
"""One kernel in the assembler's log."""


class Usage(NamedTuple):
    """What the assembler says of one kernel."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    """Static."""


def usage(compiled: Compiled) -> dict[str, Usage]:
    """Return what each kernel takes, by plain symbol."""
    symbols = {mangled: symbol for symbol, mangled in compiled.names.items()}
    found = {}
    for entry in ENTRY.finditer(compiled.log):
        shared = re.search(r"(\d+) bytes smem", entry["rest"])
        found[symbols[entry["name"]]] = Usage(
            int(entry["registers"]),
            int(entry["spill"]),
            int(entry["stack"]),
            int(shared[1]) if shared else 0,
        )
    return found


def read() -> Budget:
    budget: Budget = json.loads(FILE.read_text())
    return budget


def used(compiled: Compiled) -> dict[str, list[int]]:
    """Return what the budget is to allow, by symbol."""
    return {s: [u.registers, u.shared_bytes] for s, u in sorted(usage(compiled).items())}


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
