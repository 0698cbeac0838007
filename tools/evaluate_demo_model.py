"""Examines the demo model on what it never saw; `--write` puts the result into its folder.

python -m tools.evaluate_demo_model millrace/demo_model --write
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tools.demo_conversations import DOMAINS
from tools.demo_examination import Case, examine, summary
from tools.demo_export import load_network
from tools.demo_report import write_golden, write_readme


def main() -> None:
    """Examines a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=300, help="questions per domain and language")
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print per domain")
    parser.add_argument("--write", action="store_true", help="write README.md and golden.json")
    arguments = parser.parse_args()
    cases = report(arguments.folder, arguments.cases, write=arguments.write)
    for domain in DOMAINS:
        wrong = [case for case in cases if case.domain == domain and not case.right]
        sys.stdout.writelines(_shown(case) for case in wrong[: arguments.show])


def report(folder: Path, cases: int, *, write: bool) -> list[Case]:
    """Examines the exported, rounded weights, and says and perhaps writes how they do."""
    network, tokenizer = load_network(folder)
    examined = examine(network, tokenizer, cases)
    sys.stdout.write(summary(examined).replace(", ", "\n") + "\n")
    if write:
        recipe = json.loads((folder / "training.json").read_text(encoding="utf-8"))["text"]
        write_readme(folder, network, examined, recipe)
        sys.stdout.write(f"{write_golden(folder, network, tokenizer)} golden answers\n")
    return examined


def _shown(case: Case) -> str:
    asked = " / ".join(message["content"] for message in case.messages)
    return f"{case.domain}: {asked}\n  want {case.expected}\n  got  {case.given}\n"


if __name__ == "__main__":
    main()
