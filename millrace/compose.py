"""Reads docker-compose.yml: the part of its language that this project's file uses.

What it does not know it refuses, with the place: a file that means something else to Docker than to
the local runner would be worse than none. Keys that only make sense in a container are known and
carried nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from millrace.errors import CommandError
from millrace.interpolation import InterpolationError, interpolate

LOCAL_KEY = "x-millrace-local"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")


class ComposeError(CommandError):
    """The file is missing, malformed, or says something the local runner does not know."""


class Healthcheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    test: list[str]
    interval: str = "30s"
    timeout: str = "30s"
    retries: int = 3
    start_period: str = "0s"
    start_interval: str = "5s"

    @property
    def command(self) -> list[str]:
        return self.test[1:]


class Dependency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    condition: Literal["service_healthy"]


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["bind"]
    source: str
    target: str
    read_only: bool = False
    bind: dict[str, bool] = {}


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that its services find at /run/secrets/<name>."""

    file: str

    def mount(self, name: str) -> Mount:
        return Mount(type="bind", source=self.file, target=f"/run/secrets/{name}", read_only=True)


class Deploy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replicas: int = 1


class Service(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: list[str]
    environment: dict[str, str] = {}
    healthcheck: Healthcheck | None = None
    depends_on: dict[str, Dependency] = {}
    deploy: Deploy = Deploy()
    restart: str = "no"
    ports: list[str] = []
    volumes: list[Mount] = []
    secrets: list[str] = []
    stop_grace_period: str = "10s"
    profiles: list[str] = []
    # Of a container only:
    image: Any = None
    build: Any = None
    networks: Any = None
    init: Any = None
    read_only: Any = None
    tmpfs: Any = None
    cap_drop: Any = None
    security_opt: Any = None
    logging: Any = None

    def published(self) -> dict[int, tuple[str, int]]:
        """Return (host, port) outside by container port."""
        found: dict[int, tuple[str, int]] = {}
        for text in self.ports:
            match = re.fullmatch(r"(?:([\d.]+):)?(\d+):(\d+)", text)
            if match is None:
                raise ComposeError(f"ports: {text!r} is not [host:]published:container")
            found[int(match[3])] = (match[1] or "0.0.0.0", int(match[2]))
        return found


class ComposeFile(msgspec.Struct, frozen=True):
    """The services of the active profiles by name, in an order that respects `depends_on`."""

    services: dict[str, Service]
    root: Path
    """Folder of the file: relative paths start here."""


def load(path: Path, variables: Mapping[str, str], profiles: frozenset[str]) -> ComposeFile:
    """Read, interpolate and check `path`; raise ComposeError that names the place."""
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ComposeError(f"{path}: {error}") from error
    if not isinstance(tree, dict):
        raise ComposeError(f"{path}: not a mapping")
    known = {"services", "networks", "volumes", "secrets"}
    if unknown := [k for k in tree if k not in known and not str(k).startswith("x-")]:
        raise ComposeError(f"{path}: unknown keys {unknown}; known: {sorted(known)} and x-*")
    try:
        bodies = msgspec.convert(tree.get("services") or {}, dict[str, dict[str, Any] | None])
    except msgspec.ValidationError as error:
        raise ComposeError(f"{path}: services: {error}") from error
    services = {
        name: _service(f"{path}: services.{name}", body, variables)
        for name, body in _local({n: b or {} for n, b in bodies.items()}, str(path)).items()
    }
    services = _with_secrets(services, _secrets(tree.get("secrets"), variables, str(path)))
    chosen = {n: s for n, s in services.items() if not s.profiles or profiles & set(s.profiles)}
    return ComposeFile(services=in_order(chosen), root=path.resolve().parent)


def _local(bodies: dict[str, dict[str, Any]], path: str) -> dict[str, dict[str, Any]]:
    """Leave out what `x-millrace-local` marks (`false`, or who publishes for it)."""
    local = {n: dict(b) for n, b in bodies.items() if LOCAL_KEY not in b}
    for name in [n for n in bodies if n not in local]:
        deputy = bodies[name][LOCAL_KEY]
        if deputy is False:
            continue
        if not isinstance(deputy, str) or deputy not in local:
            raise ComposeError(f"{path}: services.{name}: {LOCAL_KEY}: {deputy!r} is no service")
        local[deputy]["ports"] = [*local[deputy].get("ports", []), *bodies[name].get("ports", [])]
    return local


def _secrets(tree: Any, variables: Mapping[str, str], path: str) -> dict[str, Secret]:
    try:
        return msgspec.convert(_filled(tree or {}, variables), dict[str, Secret])
    except (msgspec.ValidationError, InterpolationError) as error:
        raise ComposeError(f"{path}: secrets: {error}") from error


def _with_secrets(services: dict[str, Service], secrets: dict[str, Secret]) -> dict[str, Service]:
    """Turn the secrets of each service into mounts."""
    for name, service in services.items():
        if unknown := set(service.secrets) - secrets.keys():
            raise ComposeError(f"services.{name}: no secrets {sorted(unknown)}")
    return {
        name: msgspec.structs.replace(
            service, volumes=[*service.volumes, *(secrets[s].mount(s) for s in service.secrets)]
        )
        for name, service in services.items()
    }


def _service(place: str, body: Any, variables: Mapping[str, str]) -> Service:
    try:
        service = msgspec.convert(_filled(body, variables), Service, strict=False)
        service.published()
        duration_s(service.stop_grace_period)
    except (msgspec.ValidationError, InterpolationError, ComposeError) as error:
        raise ComposeError(f"{place}: {error}") from error
    probe = service.healthcheck
    if probe is not None and (len(probe.test) < 2 or probe.test[0] != "CMD"):
        raise ComposeError(f'{place}: healthcheck.test must be ["CMD", program, …]')
    if not service.command:
        raise ComposeError(f"{place}: command is empty")
    return service


def _filled(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return interpolate(node, variables)
    if isinstance(node, list):
        return [_filled(item, variables) for item in node]
    if isinstance(node, dict):
        return {key: _filled(value, variables) for key, value in node.items()}
    return node


def in_order(services: dict[str, Service]) -> dict[str, Service]:
    """Return the services with every dependency before its dependents."""
    ordered: dict[str, Service] = {}

    def visit(name: str, road: tuple[str, ...]) -> None:
        if name in ordered:
            return
        if name in road:
            raise ComposeError(f"depends_on turns in a circle: {' → '.join((*road, name))}")
        for needed in services[name].depends_on:
            _check_dependency(services, name, needed)
            visit(needed, (*road, name))
        ordered[name] = services[name]

    for name in services:
        visit(name, ())
    return ordered


def _check_dependency(services: dict[str, Service], name: str, needed: str) -> None:
    if needed not in services:
        raise ComposeError(f"services.{name}: depends_on {needed}, which is no active service")
    if services[needed].healthcheck is None:
        raise ComposeError(f"services.{name}: {needed} has no healthcheck to wait for")


def duration_s(text: str) -> float:
    """Return the seconds of compose's `1m30s`, `250ms`."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ComposeError(f"{text!r} is not a duration such as 10s, 250ms, 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
