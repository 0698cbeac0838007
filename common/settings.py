"""Settings are read once, at the door: defaults < YAML file < environment < command line.

A service declares one frozen msgspec struct whose fields carry `Meta(description=…)` and bounds.
For the service `worker` the field `model` is `worker: {model: …}` in the YAML file named by
MILLRACE_CONFIG, MILLRACE_WORKER_MODEL in the environment (MILLRACE_WORKER_MODEL_FILE for the
content of a file, as secrets are mounted) and `--model=…` on the command line. An unknown name
is an error; a path in the YAML file is told from that file's folder. Nothing else in the project
reads the environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from common.errors import refuse_to_work

SERVICES = ("gateway", "tokenizer", "engine", "worker")
PATHS = ("model", "api_key_file", "tenant_limits")
S = TypeVar("S", bound=msgspec.Struct)
CHOICES = re.compile(r"\^\(([\w|]+)\)\$")

ADDRESS = r"[^\s,/*]+:(?:6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[0-5]?\d{1,4})"
ADDRESSES = rf"^\s*{ADDRESS}(\s*,\s*{ADDRESS})*\s*$"
"""Patterns of fields that name host:port, and several of them."""
LogLevel = Annotated[
    str, Meta(description="debug, info, warning or error", pattern="^(debug|info|warning|error)$")
]


class SettingsError(Exception):
    """A setting is unknown, missing, or of the wrong type or range."""


def load(
    cls: type[S],
    service: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> S:
    """Merge the four sources into `cls`; raise SettingsError that names the field."""
    argv = sys.argv[1:] if argv is None else argv
    environ = os.environ if environ is None else environ
    merged = from_file(environ.get("MILLRACE_CONFIG", ""), service)
    merged |= from_environment(environ, f"MILLRACE_{service.upper()}_", cls.__struct_fields__)
    merged |= from_arguments(argv)
    unknown = sorted(set(merged) - set(cls.__struct_fields__))
    if unknown:
        raise SettingsError(
            f"{service}: unknown settings {unknown}; known: {list(cls.__struct_fields__)}"
        )
    try:
        return msgspec.convert(merged, cls, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{service}: {_in_words(cls, merged, str(error))}") from error


def _in_words(cls: type[S], given: Mapping[str, Any], told: str) -> str:
    """Say what msgspec has found; of a pattern its choices, or what the field is."""
    why, _, place = told.rpartition(" - at `$.")
    if (name := place.rstrip("`")) not in given or " matching regex " not in why:
        return told
    meta = get_type_hints(cls, include_extras=True)[name].__metadata__[0]
    choices = CHOICES.fullmatch(meta.pattern)
    wanted = choices[1].replace("|", ", ") if choices else meta.description
    return f"{name} is {given[name]!r}, expected: {wanted}"


def load_or_exit(cls: type[S], service: str) -> S:
    """As `load`, for `__main__`: a bad setting ends the process with one clear line."""
    try:
        return load(cls, service)
    except SettingsError as error:
        refuse_to_work(f"settings: {error}")


def from_file(path: str, service: str) -> dict[str, Any]:
    """Return the section of `service` in the YAML file, empty without a file."""
    if not path:
        return {}
    try:
        sections = _named(yaml.safe_load(_text("MILLRACE_CONFIG", path)))
        if unknown := sorted({str(name) for name in sections} - {*SERVICES, service}):
            raise ValueError(f"unknown sections {unknown}; known: {', '.join(SERVICES)}")
        section = dict(_named(sections.get(service)))
        folder = Path(path).parent  # what the file names lies beside it
        paths = {k: v for k in PATHS if isinstance(v := section.get(k), str) and v}
        return section | {name: str(folder / value) for name, value in paths.items()}
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise SettingsError(
            f"MILLRACE_CONFIG: {path} is not YAML of `{service}:` and `name: value` lines under "
            f"it: {error}"
        ) from error


def _named(value: Any) -> dict[Any, Any]:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} stands where names and values should")
    return value or {}


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")  # whatever the locale
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}: {path} cannot be read: {error}") from error


def from_environment(
    environ: Mapping[str, str], prefix: str, fields: Sequence[str]
) -> dict[str, str]:
    """Return the variables under `prefix` by field; NAME_FILE stands for the content of a file."""
    found: dict[str, str] = {}
    for key, value in environ.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix).lower()
        plain = name.removesuffix("_file")
        in_file = name not in fields and plain in fields
        name = plain if in_file else name
        if value == "" and name in fields:
            continue  # an empty variable is one that compose left unset
        value = _text(key, value).strip() if in_file else value
        if found.setdefault(name, value) != value:
            raise SettingsError(f"{prefix}{name.upper()} and its _FILE differ: leave one out")
    return found


def from_arguments(argv: Sequence[str]) -> dict[str, str]:
    """Return `--some-field=value` and `--some-field value` by field; a bare flag is true."""
    found: dict[str, str] = {}
    pending = list(argv)
    while pending:
        flag = pending.pop(0)
        if not flag.startswith("--"):
            raise SettingsError(f"expected --field=value, got {flag!r}")
        name, equals, value = flag[2:].partition("=")
        if not equals:
            value = pending.pop(0) if pending and not pending[0].startswith("--") else "true"
        found[name.replace("-", "_")] = value
    return found


def inherited(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours plus `extra`."""
    return {**os.environ, **extra}
