"""What Python programs hand over → the plain values that a body of the server's API has."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

from api_gateway.checks import check_bound
from common.errors import InvalidRequest
from protos.json_fields import dumps, loads
from protos.limits import MAX_REQUEST_ID_CHARS


def invalid(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {message}", param=param)


def plain(value: Any) -> Any:
    """Return NumPy's numbers as Python's, and a collection of them as a list or a dict."""
    if isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0:
        return one(value)
    if isinstance(value, Mapping):
        return {key: one(inner) for key, inner in value.items()}
    if isinstance(value, Collection):
        return [one(inner) for inner in value]
    return one(value)


def one(value: Any) -> Any:
    """Return a number of any kind as Python's, all else as it is."""
    if isinstance(value, bool | str):
        return value
    try:
        return operator.index(value)
    except TypeError:
        if getattr(value, "ndim", None) == 0:  # NumPy's, and what follows it
            return value.item()
        return float(value) if isinstance(value, Real) else value


def as_json(name: str, value: Any) -> Any:
    """Return a value as it comes out of JSON; raise InvalidRequest where that has no words."""
    try:
        return loads(dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(name, f"must be what JSON can say: {error}") from None


def check_unicode(name: str, text: str) -> None:
    """Raise InvalidRequest for lone surrogates, which stand for bytes that were no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(name, f"is not Unicode text: {error}") from None


def check_request_id(request_id: str) -> None:
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARS:
        what = f"must be a string of 1 to {MAX_REQUEST_ID_CHARS} characters"
        raise invalid("request_id", f"{what}, got {request_id!r:.80}")
    check_unicode("request_id", request_id)


def plain_seed(seed: Any) -> int | None:
    """Return a seed as Python's number; raise InvalidRequest unless it may be one."""
    seed = one(seed)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise invalid("seed", f"must be a whole number, got {seed!r}")
    check_bound("seed", seed)
    return seed
