"""`millrace down`: stops the stack and makes sure that nothing of it is left."""

from __future__ import annotations

import argparse
import os
import signal
import time
from urllib.parse import urlsplit

from millrace import child
from millrace.errors import CommandError
from millrace.processes import is_alive, is_listening, send
from millrace.project import add_arguments as add_project_arguments
from millrace.project import project
from millrace.state import RunState, StateFolder

GRACE_S = 60.0
POLL_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `down`."""
    add_project_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Stop what runs; return the exit status."""
    state = project(args).state
    run = state.read()
    if run is None:
        state.check_told()
        print("millrace: nothing is running")
        return 0
    state.check_in_sight()
    lived = is_alive(run.runner)
    try:
        stop(run)
    except PermissionError as error:
        raise CommandError(f"{run.url} (pid {run.runner.pid}) is another user's") from error
    killed = child.kill_marked(run.run)
    if lived or killed:  # else it was gone before, and its ports may be a stranger's by now
        _check_ports(run)
    _forget(state)
    print(f"millrace: stopped{f' ({killed} processes had to be killed)' if killed else ''}")
    return 0


def stop(run: RunState) -> None:
    """End the runner, which ends its replicas; kill it when it takes too long."""
    send(run.runner, signal.SIGTERM)
    send(run.runner, signal.SIGCONT)  # one that a Ctrl-Z has halted would not hear of it
    deadline = time.monotonic() + GRACE_S
    while is_alive(run.runner):
        if time.monotonic() > deadline:
            send(run.runner, signal.SIGKILL)
        time.sleep(POLL_S)


def _forget(state: StateFolder) -> None:
    """Drop the state, unless a new runner has taken the lock meanwhile."""
    lock = state.lock()
    if lock is not None:
        state.forget()
        os.close(lock)


def _check_ports(run: RunState) -> None:
    """Raise CommandError unless its ports are free; the API's on the address it was open at."""
    door = urlsplit(run.url)
    ports = {port for replica in run.replicas for port in replica.ports.values()}
    hosts = dict.fromkeys(ports, "127.0.0.1") | {door.port: door.hostname or ""}
    deadline = time.monotonic() + 2.0
    while taken := sorted(port for port in ports if is_listening(hosts[port], port)):
        if time.monotonic() > deadline:
            raise CommandError(f"all processes are gone, yet these ports are taken: {taken}")
        time.sleep(POLL_S)
