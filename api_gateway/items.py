"""Objects that say of which kind they are: the items and blocks of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from api_gateway.checks import refuse
from api_gateway.parsing import explained
from common.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)


def typed(
    raw: dict[str, Any], kinds: Mapping[str, type[T]], param: str, why: str, default: str = ""
) -> T:
    """Return `raw` as its type says; raise InvalidRequest that names the field.

    `why` says of other types why there are no more; `default` is the type of those without one.
    """
    kind = raw.get("type") or default
    cls = kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise refuse(
            f"{param}: type {str(kind)[:40]!r} is not supported: {why}; "
            f"allowed: {', '.join(kinds)}",
            f"{param}.type",
            "unsupported_content",
        )
    try:
        return msgspec.convert(raw, cls)
    except msgspec.ValidationError as error:
        problem = explained(str(error), cls)
        inner = f"{param}.{problem.param}" if problem.param else param
        message = problem.message if problem.param is None else f"{param}.{problem.message}"
        raise InvalidRequest(message, param=inner, code=problem.code) from error
