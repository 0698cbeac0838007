"""`millrace status`: what runs, since when, how often it had to be started again."""

from __future__ import annotations

import argparse
import asyncio

from millrace.processes import ProcessId, age_s, is_alive, is_halted
from millrace.project import add_arguments as add_project_arguments
from millrace.project import project, running
from millrace.readiness import get, unready
from millrace.state import ReplicaState, RunState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `status`."""
    add_project_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the state of the stack; return 0 when it is ready, 1 when not."""
    state = running(args)
    verdict = asyncio.run(_verdict(state))
    print(f"{state.url}  {state.model}  {verdict}  up {_age(age_s(state.runner))}")
    folder = project(args).state
    if folder.is_old():
        print(f"  {folder.folder} cannot be written (is the disk full?): what follows is older")
    if is_halted(state.runner):
        print(f"  pid {state.runner.pid}, which starts again what ends, is halted itself (Ctrl-Z?)")
    for replica in state.replicas:
        print(_line(replica))
    return 0 if verdict == "ready" else 1


async def _verdict(state: RunState) -> str:
    try:
        status, body = await get(f"{state.url}/ready")
    except OSError:
        return "no answer"
    reasons = unready(status, body)
    return f"not ready: {'; '.join(reasons)}" if reasons else "ready"


def _line(replica: ReplicaState) -> str:
    process = replica.process
    if process is not None and not is_alive(process):
        process = None  # who should have noted its end is halted, or about to
    pid = f"pid {process.pid}" if process else "not running"
    health = _health(process, replica.healthy)
    ports = " ".join(f"{inside}→{local}" for inside, local in replica.ports.items())
    return f"  {replica.name:<20} {pid:<12} {health:<9} restarts {replica.num_restarts}  {ports}"


def _health(process: ProcessId | None, was_healthy: bool) -> str:
    if process is None:
        return "down"
    if is_halted(process):  # the probe asks until it has succeeded once
        return "halted"
    return "healthy" if was_healthy else "starting"


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
