"""`docker compose` as the story calls it. Knows commands, not what the services mean."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = os.environ["COMPOSE_PROJECT_NAME"]
PROFILES = ("--profile", "observability", "--profile", "redis")


def docker(*words: str) -> str:
    """Run one docker command; return what it prints, raise with what it complains."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(words)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def compose(*words: str) -> str:
    return docker("compose", "--progress", "quiet", *PROFILES, *words)


def up(services: Sequence[str], **scales: int) -> None:
    """Bring these services to these numbers of replicas and wait until all are healthy."""
    wanted = [f"--scale={name.replace('_', '-')}={count}" for name, count in scales.items()]
    compose("up", "--detach", "--wait", "--wait-timeout", "120", *wanted, *services)


def containers() -> list[dict[str, Any]]:
    """Return what the engine knows of every container of the project."""
    ids = docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={PROJECT}").split()
    found: list[dict[str, Any]] = json.loads(docker("inspect", *ids)) if ids else []
    return found


def service(container: dict[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def health() -> dict[str, str]:
    """Return the health of each service; of several replicas, of one."""
    return {service(c): str(c["State"]["Health"]["Status"]) for c in containers()}


def down() -> None:
    """Remove the project; raise when it leaves a container, network, volume or process behind."""
    groups = {c["State"]["Pid"]: str(c["Id"]) for c in containers()}
    compose("down", "-v", "-t", "10")
    if found := [*left(), *(f"process {pid}" for pid, name in groups.items() if lives(pid, name))]:
        raise RuntimeError(f"left behind: {found}")


def lives(pid: int, container: str) -> bool:
    """Tell whether this is still a process of that container."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def left() -> list[str]:
    """Return containers, networks and volumes of the project that exist."""
    mine = ("--filter", f"label=com.docker.compose.project={PROJECT}")
    kinds = (("ps", "-aq"), ("network", "ls", "-q"), ("volume", "ls", "-q"))
    return [f"{kind[0]} {name}" for kind in kinds for name in docker(*kind, *mine).split()]
