"""What Python programs hand over → the plain values that a body of the server's API has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

from api_gateway.checks import check_bound
from common.errors import InvalidRequest
from protos.json_fields import dumps, loads
from protos.limits import MAX_REQUEST_ID_CHARS


def invalid(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {message}", param=param)


def plain(value: Any) -> Any:
    """Return `value` with NumPy's numbers as Python's, and its collections as lists and dicts."""
    if isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Collection):
        return [plain(inner) for inner in value]
    return value


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


def check_seed(seed: Any) -> None:
    """Raise InvalidRequest unless `seed` is None or may be a seed."""
    seed = plain(seed)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise invalid("seed", f"must be a whole number, got {seed!r}")
    check_bound("seed", seed)
