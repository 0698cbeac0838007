"""Checks of SamplingParams, against the same table of limits as the two doors of the server."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from common.errors import InvalidRequest
from protos.json_fields import dumps
from protos.limits import MAX_LOGIT_BIASES, MAX_REQUEST_ID_CHARS, MAX_U32, violation

WHOLE = (
    "top_k", "seed", "max_tokens", "min_tokens", "n", "logprobs", "prompt_logprobs", "n_keep",
    "dry_allowed_length", "dry_penalty_last_n",
)  # fmt: skip


def invalid(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {message}", param=param)


def whole(value: Any) -> Any:
    """Return NumPy's whole numbers as Python's; anything else as it is."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def whole_each(values: Any) -> Any:
    """Return a list or an array of whole numbers as Python's; anything else as it is."""
    if isinstance(values, str | Mapping) or not isinstance(values, Collection):
        return values
    return [whole(value) for value in values]


def check_number(name: str, value: Any) -> None:
    """Raise InvalidRequest unless `value` is None or may stand in the field `name`."""
    if value is None:
        return
    kinds = (int,) if name in WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        whole = "a whole number" if name in WHOLE else "a number"
        raise invalid(name, f"must be {whole}, got {value!r}")
    if why := violation(name, value):
        raise InvalidRequest(why, param=name)


def check_flag(name: str, value: Any) -> None:
    """Raise InvalidRequest unless `value` is True or False."""
    if not isinstance(value, bool):
        raise invalid(name, f"must be True or False, got {value!r}")


def check_texts(name: str, texts: Sequence[str], most: int, max_chars: int) -> None:
    """Raise InvalidRequest unless these are at most `most` strings, none empty or too long."""
    if isinstance(texts, str) or not isinstance(texts, Collection):
        raise invalid(name, f"must be a list of strings, got {texts!r}")
    if len(texts) > most:
        raise invalid(name, f"has {len(texts)} strings, at most {most} are allowed")
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= max_chars:
            raise invalid(name, f"must be strings of 1 to {max_chars} characters, got {text!r}")
        check_unicode(name, text)


def check_unicode(name: str, text: str) -> None:
    """Raise InvalidRequest for lone surrogates, which stand for bytes that were no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(name, f"is not Unicode text: {error}") from None


def as_json(name: str, value: Any) -> bytes:
    """Return a value as JSON; raise InvalidRequest where JSON has no words for it."""
    try:
        return dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(name, f"must be what JSON can say: {error}") from None


def check_request_id(request_id: str) -> None:
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARS:
        what = f"must be a string of 1 to {MAX_REQUEST_ID_CHARS} characters"
        raise invalid("request_id", f"{what}, got {request_id!r:.80}")
    check_unicode("request_id", request_id)


def check_ids(name: str, token_ids: Sequence[int], most: int) -> None:
    """Raise InvalidRequest unless these are at most `most` token ids."""
    if not isinstance(token_ids, Collection):
        raise invalid(name, f"must be a list of token ids, got {token_ids!r}")
    if len(token_ids) > most:
        raise invalid(name, f"has more than {most} ids")
    for token_id in token_ids:
        check_id(name, token_id)


def check_id(name: str, token_id: int) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id <= MAX_U32:
        raise invalid(name, f"must hold token ids, got {token_id!r}")


def check_biases(biases: Mapping[int, float]) -> None:
    if not isinstance(biases, Mapping):
        raise invalid("logit_bias", f"must be a dict of token ids and numbers, got {biases!r}")
    if len(biases) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"has more than {MAX_LOGIT_BIASES} entries")
    for token_id, bias in biases.items():
        check_id("logit_bias", token_id)
        check_number("logit_bias", bias)


def check_dynamic(dynamic: Mapping[str, float]) -> None:
    """Raise InvalidRequest unless it has a `range`, and nothing but that and an `exponent`."""
    name = "dynamic_temperature"
    if not isinstance(dynamic, Mapping) or not {"range"} <= {*dynamic} <= {"range", "exponent"}:
        raise invalid(name, f"must have range and may have exponent, got {dynamic!r}")
    for key, value in dynamic.items():
        check_number(f"{name}.{key}", value)
