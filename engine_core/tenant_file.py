"""The file of `tenant_limits`: a line `tenant key=number …` for each tenant, `*` for all others.

`#` starts a comment. A tenant with a line of its own has nothing of the line `*`. The keys are the
fields of `TenantLimits`; the file is read once, at the start.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from common.settings import SettingsError
from engine_core.scheduling.bounds import TenantLimits
from protos.limits import LIMITS


def read_tenants(path: str) -> dict[str, TenantLimits]:
    """Return the limits by tenant; raise SettingsError that names the line. Empty path = none."""
    if not path:
        return {}
    try:
        return parse(Path(path).read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"tenant_limits: {error}") from error


def parse(text: str) -> dict[str, TenantLimits]:
    """Return the limits by tenant; raise SettingsError that names the line."""
    found: dict[str, TenantLimits] = {}
    for number, line in enumerate(text.splitlines(), 1):
        tenant, *words = line.partition("#")[0].split() or [""]
        if not tenant:
            continue
        if tenant in found:
            raise SettingsError(f"tenant_limits: line {number}: {tenant} has a line already")
        try:
            found[tenant] = _limits(words)
        except ValueError as error:
            raise SettingsError(f"tenant_limits: line {number}: {error}") from error
    return found


def _limits(words: list[str]) -> TenantLimits:
    pairs = [_pair(word) for word in words]
    if len(numbers := dict(pairs)) < len(pairs):
        raise ValueError("a key stands there twice")
    return TenantLimits(**numbers)


def _pair(word: str) -> tuple[str, int]:
    key, equals, value = word.partition("=")
    fields = msgspec.structs.fields(TenantLimits)
    if not equals or key not in {field.name for field in fields}:
        names = ", ".join(field.name for field in fields)
        raise ValueError(f"expected key=number with a key of {names}, got {word!r}")
    if key == "priority":
        return key, _priority(value)
    if not value.isdecimal() or int(value) == 0:
        raise ValueError(f"{key} must be a number of at least 1, got {value!r}")
    return key, int(value)


def _priority(value: str) -> int:
    """Return one that a request may have: its limit may be zero, or below."""
    low, high = LIMITS["priority"]
    if re.fullmatch(r"[+-]?[0-9]{1,9}", value) and low <= int(value) <= high:
        return int(value)
    raise ValueError(f"priority must be a number of {low} to {high}, got {value!r}")
