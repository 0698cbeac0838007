"""`millrace status`: what runs, since when, how often it had to be started again."""

from __future__ import annotations

import argparse
import asyncio

from millrace.processes import age_s, is_halted
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
    process = f"pid {replica.process.pid}" if replica.process else "not running"
    health = _health(replica)
    ports = " ".join(f"{inside}→{local}" for inside, local in replica.ports.items())
    return (
        f"  {replica.name:<20} {process:<12} {health:<9} restarts {replica.num_restarts}  {ports}"
    )


def _health(replica: ReplicaState) -> str:
    if replica.process is None:
        return "down"
    if is_halted(replica.process):  # the probe asks until it has succeeded once
        return "halted"
    return "healthy" if replica.healthy else "starting"


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
