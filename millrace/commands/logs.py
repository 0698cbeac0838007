"""`millrace logs`: the output of all processes, as the runner has collected it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from millrace.arguments import whole
from millrace.console import (
    BYTES_PER_LINE,
    MAX_LOG_BYTES,
    RUNNER,
    coloured,
    has_colours,
    last_lines,
    tail,
)
from millrace.errors import CommandError
from millrace.project import add_arguments as add_project_arguments
from millrace.project import project
from millrace.state import StateFolder

POLL_S = 0.2
EVERY_LINE = MAX_LOG_BYTES // BYTES_PER_LINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `logs`."""
    parser.add_argument("services", nargs="*", help="only these services or replicas")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the stack stops")
    parser.add_argument("-n", "--lines", type=whole, default=200, help="how many to begin with")
    add_project_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the last lines, and with --follow the next ones; return the exit status."""
    state = project(args).state
    if not state.log.exists():
        raise CommandError("there are no logs here; start it with: millrace up")
    _check_names(state, args.services)
    show = coloured if has_colours() else str
    for line in _lines(state, args):
        print(show(line), flush=True)
    return 0


def _check_names(state: StateFolder, services: list[str]) -> None:
    """Refuse a name that no line will ever have, as far as the run that logs is known."""
    if (run := state.read()) is None:
        return
    known = [RUNNER, *dict.fromkeys(replica.service for replica in run.replicas)]
    names = {*known, *(replica.name for replica in run.replicas)}
    for service in services:
        if service not in names:
            raise CommandError(f"no service {service} here; there are {', '.join(known)}")


def _lines(state: StateFolder, args: argparse.Namespace) -> Iterator[str]:
    """Yield lines of the services that are asked for: of a busy stack the last ones are others'."""
    most = EVERY_LINE if args.services else args.lines
    lines = follow(state, most) if args.follow else iter(tail(state.log, most))
    if not args.services:
        yield from lines
        return
    wanted = [line for line in tail(state.log, most) if _wanted(line, args.services)]
    skipped = max(0, len(wanted) - args.lines)
    for number, line in enumerate(line for line in lines if _wanted(line, args.services)):
        if number >= skipped:
            yield line


def _wanted(line: str, services: list[str]) -> bool:
    name = line.partition(" | ")[0].strip()
    return name in services or name.rpartition("-")[0] in services


def follow(state: StateFolder, num_lines: int) -> Iterator[str]:
    """Yield the last lines and then every new one, until the stack stops."""
    file = state.log.open("rb")
    *lines, partial = last_lines(file, num_lines)
    yield from (line.decode(errors="replace") for line in lines)
    while True:
        # Asked first: what was written before either is still read.
        alive = state.running() is not None
        replaced = _replaced(file.fileno(), state.log)
        while chunk := file.readline():
            partial += chunk
            if partial.endswith(b"\n"):
                yield partial[:-1].decode(errors="replace")
                partial = b""
        if not alive:
            file.close()
            return
        if replaced:
            file.close()
            file = state.log.open("rb")
        time.sleep(POLL_S)


def _replaced(descriptor: int, path: Path) -> bool:
    """Tell whether the log was rotated since it was opened."""
    try:
        return path.stat().st_ino != Path(f"/proc/self/fd/{descriptor}").stat().st_ino
    except FileNotFoundError:
        return False
