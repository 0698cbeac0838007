"""Turns services into local replicas: where a container has an address of its own, a process has a
port of its own.

Pure: ports come from the caller. The rules: a variable `X_PORT` is a port the service listens on,
its `X_HOST` the interface; every replica gets a free loopback port for it; a published one is
shared by all replicas. `service:port` in a variable becomes the list of that service's replicas.
A path under a mount's target becomes the path under its source.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.compose import ComposeError, ComposeFile, Service, duration_s

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"\b([a-z][a-z0-9-]*):(\d+)\b")


@dataclass(frozen=True)
class Replica:
    """One process to run. `ports` maps the container's port to the local one."""

    name: str
    service: str
    command: list[str]
    environment: dict[str, str]
    ports: dict[int, int]
    probe: list[str] | None
    probe_interval_s: float
    probe_timeout_s: float
    stop_grace_s: float
    restart: str
    needs: list[str]
    """Services whose replicas must all be healthy before this one starts."""


def place(
    file: ComposeFile, scales: Mapping[str, int], pick_port: Callable[[], int]
) -> list[Replica]:
    """Return all replicas, dependencies first; `scales` overrides `deploy.replicas`."""
    counts = {name: scales.get(name, s.deploy.replicas) for name, s in file.services.items()}
    ports = {
        name: [_ports(service, pick_port) for _ in range(counts[name])]
        for name, service in file.services.items()
    }
    return [
        _replica(file, name, index, ports)
        for name in file.services
        for index in range(counts[name])
    ]


def _ports(service: Service, pick_port: Callable[[], int]) -> dict[int, int]:
    published = service.published()
    listening = [
        _number(key, value) for key, value in service.environment.items() if key.endswith("_PORT")
    ]
    if missing := set(published) - set(listening):
        raise ComposeError(f"ports: no variable *_PORT of the service holds {sorted(missing)}")
    return {port: published[port][1] if port in published else pick_port() for port in listening}


def _number(key: str, value: str) -> int:
    if not value.isdecimal():
        raise ComposeError(f"environment.{key}: {value!r} is not a port")
    return int(value)


def _replica(
    file: ComposeFile, name: str, index: int, ports: dict[str, list[dict[int, int]]]
) -> Replica:
    service = file.services[name]
    own = ports[name][index]
    probe = service.healthcheck
    return Replica(
        name=f"{name}-{index + 1}",
        service=name,
        command=_runnable(service.command),
        environment={
            key: _value(file, service, key, value, own, ports)
            for key, value in service.environment.items()
        },
        ports=own,
        probe=_runnable([_local(word, own) for word in probe.command]) if probe else None,
        probe_interval_s=duration_s(probe.start_interval) if probe else 1.0,
        probe_timeout_s=duration_s(probe.timeout) if probe else 1.0,
        stop_grace_s=duration_s(service.stop_grace_period),
        restart=service.restart,
        needs=list(service.depends_on),
    )


def _runnable(command: list[str]) -> list[str]:
    return [sys.executable, *command[1:]] if command[0] == "python" else command


def _local(word: str, own: dict[int, int]) -> str:
    """Replace the container's own port in a probe's URL."""
    return re.sub(
        rf"\b({re.escape(LOOPBACK)}|localhost):(\d+)\b",
        lambda match: f"{match[1]}:{own.get(int(match[2]), int(match[2]))}",
        word,
    )


def _value(
    file: ComposeFile,
    service: Service,
    key: str,
    value: str,
    own: dict[int, int],
    ports: dict[str, list[dict[int, int]]],
) -> str:
    if key.endswith("_PORT"):
        return str(own[int(value)])
    if key.endswith("_HOST"):
        port = int(service.environment.get(key.removesuffix("HOST") + "PORT", 0))
        return service.published().get(port, (LOOPBACK, 0))[0]
    for mount in service.volumes:
        if value == mount.target or value.startswith(mount.target + "/"):
            return str(file.root / mount.source) + value.removeprefix(mount.target)
    return _ADDRESS.sub(lambda match: _addresses(key, match, ports), value)


def _addresses(key: str, match: re.Match[str], ports: dict[str, list[dict[int, int]]]) -> str:
    service, port = match[1], int(match[2])
    if service not in ports:
        return match[0]
    if any(port not in own for own in ports[service]):
        raise ComposeError(f"environment.{key}: {service} has no variable *_PORT holding {port}")
    return ",".join(f"{LOOPBACK}:{own[port]}" for own in ports[service])
