"""Millrace and whichever peers are installed, on one random model, one after the other.

`python -m bench.peers --shape qwen2-1.5b --batch 1,8,16 --prefill 512 --python PEERS/bin/python`
prints one table and writes it. Each system has a process of its own, the same threads, contexts
and number of greedy steps. `README.md` beside this file says how peers are installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from bench.peers.asking import Task
from bench.peers.candidates import CANDIDATES, OURS, PEERS, WEIGHTS, Candidate
from bench.peers.hardware import hardware, revision
from bench.peers.running import Outcome, run
from bench.peers.table import document
from bench.random_model import SHAPES, write_random_model
from bench.rows import numbers
from bench.tiers import end_on_sigterm
from worker.kernels.library import default_cache_dir


def main() -> None:
    """Measure every candidate that is asked for, print the page and write it."""
    args = _arguments()
    pythons = _interpreters(args.python)
    folder = args.folder or default_cache_dir() / "bench" / args.shape
    write_random_model(folder, args.shape)
    task = _task(args, folder)
    outcomes = [
        _measured(candidate, task, pythons[candidate.name], args.limit)
        for candidate in CANDIDATES
        if candidate.name in args.only and candidate.against in args.weights
    ]
    if args.prepare:
        return
    page = document(
        f"{args.shape}: Millrace and its peers, {date.today()}", _facts(args), outcomes, task
    )
    print(page)
    output = args.output or folder / "peers" / "table.md"
    output.write_text(page)
    print(f"written to {output}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    option = parser.add_argument
    option("--shape", choices=SHAPES, default="qwen2-1.5b")
    option("--folder", type=Path, help="where the random model is, or goes")
    option("--batch", type=numbers, default=[1, 8, 16], metavar="B[,B…]")
    option("--prefill", type=int, default=512, help="tokens of the prefill; 0 = none")
    option("--context", type=int, default=16, help="tokens before the first decoded one")
    option("--steps", type=int, default=24, help="decode steps per batch")
    option("--runs", type=int, default=3, help="prefills, of which the fastest counts")
    option("--threads", type=int, default=len(os.sched_getaffinity(0)))
    option("--limit", type=float, default=600, metavar="S", help="seconds for each system")
    names = {name.lower(): name for name in (OURS, *PEERS)}
    option("--only", type=lambda text: _chosen(text, names), default=list(names.values()),
           metavar="NAME[,NAME…]", help=f"of {', '.join(names.values())}")  # fmt: skip
    option("--weights", type=lambda text: _chosen(text, {name: name for name in WEIGHTS}),
           default=WEIGHTS, metavar="W[,W…]",
           help=f"of {', '.join(WEIGHTS)}: ours, and what is held against them")  # fmt: skip
    option("--python", action="append", default=[], metavar="[NAME=]PATH",
           help="the interpreter of all peers, or of one; may be repeated")  # fmt: skip
    option("--output", type=Path, help="where the page goes")
    option("--prepare", action="store_true", help="convert and load every model, measure nothing")
    return parser.parse_args()


def _chosen(text: str, names: dict[str, str]) -> list[str]:
    parts = [part.strip().lower() for part in text.split(",")]
    if unknown := [part for part in parts if part not in names]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names.values())}")
    return [names[part] for part in parts]


def _interpreters(given: list[str]) -> dict[str, str]:
    """Return the interpreter of every system; a path without a name is for all peers."""
    names = {name.lower(): name for name in PEERS}
    pythons = dict.fromkeys((OURS, *PEERS), sys.executable)
    for entry in sorted(given, key=lambda entry: "=" in entry):
        name, _, path = entry.rpartition("=")
        if name and name.lower() not in names:
            sys.exit(f"--python: {name!r} is none of {', '.join(PEERS)}")
        for peer in [names[name.lower()]] if name else PEERS:
            pythons[peer] = path
    return pythons


def _task(args: argparse.Namespace, folder: Path) -> Task:
    return Task(
        folder=str(folder.resolve()),
        converted=str((folder / "peers").resolve()),
        weights="",
        batches=[] if args.prepare else args.batch,
        context=args.context,
        steps=args.steps,
        prompt=0 if args.prepare else args.prefill,
        runs=args.runs,
        threads=args.threads,
    )


def _measured(candidate: Candidate, task: Task, python: str, limit_s: float) -> Outcome:
    outcome = run(candidate, replace(task, weights=candidate.weights), python, limit_s)
    answer = outcome.answer
    rates = [f"batch {b}: {rate:.1f}" for b, rate in answer.decode_tokens_per_s.items()]
    if task.prompt:
        rates.append(f"prefill: {answer.prefill_tokens_per_s:.0f}")
    told = [f"loaded in {answer.load_s:.1f} s", *rates, outcome.problem]
    print(f"{candidate.title}: {', '.join(filter(None, told))}", file=sys.stderr, flush=True)
    return outcome


def _facts(args: argparse.Namespace) -> list[str]:
    """Return hardware, command and revision; paths stay out, they tell a reader nothing."""
    batches = ",".join(map(str, args.batch))
    command = (
        f"python -m bench.peers --shape {args.shape} --batch {batches} --prefill {args.prefill}"
        f" --context {args.context} --steps {args.steps} --threads {args.threads}"
    )
    return [hardware(), f"Command: `{command} --python PATH` at revision {revision()}."]


if __name__ == "__main__":
    end_on_sigterm()
    main()
