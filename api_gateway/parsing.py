"""Bytes of a body → a typed request; whatever is wrong becomes InvalidRequest naming the field."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn, TypeVar

import msgspec

from api_gateway import unserved
from api_gateway.anthropic.schema import MessagesRequest, Prompted
from api_gateway.messages import drop_beside_texts
from api_gateway.responses.schema import ResponseRequest
from api_gateway.schema import ChatRequest, CompletionRequest, EmbeddingRequest
from api_gateway.shapes import drop_unknown, shape_of, with_whole_numbers, words_of
from common.errors import InvalidRequest

R = TypeVar("R", bound=msgspec.Struct)
UNSERVED: dict[type, dict[str, tuple[Any, ...]]] = {
    ChatRequest: unserved.CHAT,
    CompletionRequest: unserved.COMPLETION,
    ResponseRequest: unserved.RESPONSE,
    MessagesRequest: unserved.MESSAGES,
    Prompted: unserved.MESSAGES,
    EmbeddingRequest: unserved.EMBEDDING,
}
_decode = msgspec.json.Decoder().decode
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_ENUM = re.compile("Invalid (?:enum )?value ")  # of listed words, or of a tag
_NOTHING = re.compile("Expected `null`, got")  # a field that may be left empty, and no more
_PATH = re.compile(r" - at `(?:key in `)?\$(?P<path>[^`]*)`")
_SURROGATE = re.compile("[\ud800-\udfff]")
NOT_FINITE = "a number that is not finite, or too large"
NOT_UNICODE = "text that is not UTF-8, or has half of a surrogate pair"
MAX_NAME_CHARS = 100
UNKNOWN, WRONG_TYPE = "unknown_field", "invalid_type"
LENGTH = ("max_tokens", "max_output_tokens")
OTHER_NAMES = {
    **dict.fromkeys(("max_new_tokens", "n_predict", "num_predict", *LENGTH), LENGTH),
    "max_completion_tokens": LENGTH,
    "add_special": ("add_special_tokens",),
    "content": ("prompt",),
    **dict.fromkeys(("dynatemp_exponent", "dynatemp_range"), ("dynamic_temperature",)),
    "enable_thinking": ("chat_template_kwargs",),
    "json_schema": ("response_format",),
    "min_new_tokens": ("min_tokens",),
    "n_cmpl": ("n",),
    "random_seed": ("seed",),
    "reasoning": ("reasoning_effort",),
    "repeat_penalty": ("repetition_penalty",),
    "return_prompt_token_ids": ("return_token_ids",),
    "rid": ("request_id",),
    "sampling_seed": ("seed",),
    "stop_sequences": ("stop",),
    **dict.fromkeys(("typ_p", "typical"), ("typical_p",)),
    "with_pieces": ("return_token_strs",),
    **dict.fromkeys(
        ("reasoning_budget", "thinking_budget", "thinking_budget_tokens"),
        ("thinking_token_budget",),
    ),
}
"""Names that other servers and routes have for fields of ours."""
GZIP = b"\x1f\x8b"


def parse(body: bytes, cls: type[R], is_lenient: bool) -> R:
    """Return the request in `body`; `is_lenient` ignores unknown fields, of inner objects too."""
    raw = decode(body)
    unserved.take_out(raw, UNSERVED.get(cls, {}))
    if is_lenient:
        drop_unknown(raw, shape_of(cls))
        drop_beside_texts(raw.get("messages"))
    return read(raw, cls)


def read(raw: dict[str, Any], cls: type[R]) -> R:
    """Return the request in a JSON object.

    Unknown fields that are null ask for nothing, and JSON's 5.0 is an integer.
    """
    try:
        return converted(raw, cls)
    except InvalidRequest as error:
        if error.code not in (UNKNOWN, WRONG_TYPE):
            raise
    drop_unknown(raw, shape_of(cls), nulls_only=True)
    return converted(with_whole_numbers(raw, shape_of(cls)), cls)


def converted(raw: dict[str, Any], cls: type[R]) -> R:
    """Return the request; raise InvalidRequest for any field that is not known."""
    for name in raw:
        if name not in cls.__struct_fields__:
            raise unknown_field(name, name, cls.__struct_fields__)
    try:
        return msgspec.convert(raw, cls)
    except msgspec.ValidationError as error:
        raise explained(str(error), cls) from error


def decode(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`."""
    try:
        raw = _decode(body)
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse(body, str(error))
    if not isinstance(raw, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return raw


def refuse(body: bytes, why: str) -> NoReturn:
    """Raise for a body that is no JSON, naming the field when a laxer reader can find it."""
    param: str | None = None
    try:
        # Python's own whole numbers may not have thousands of digits.
        lax = json.loads(body.decode("utf-8", "surrogateescape"), parse_int=float)
        if offence := next(offences(lax), None):
            param, why = printable(offence[0]), offence[1]
    except (ValueError, RecursionError):
        pass  # not even nearly JSON: there is no field to name
    if body.startswith(GZIP):
        why = "it is compressed (gzip), which is not taken here"
    elif body.startswith(codecs.BOM_UTF8):
        why = "it begins with a byte order mark: leave that out"
    where = f"{param}: " if param else ""
    raise InvalidRequest(
        f"{where}the body is not valid JSON: {why}", param=param, code="invalid_json"
    )


def offences(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield where numbers are not finite or text is not Unicode, and which of the two it is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _SURROGATE.search(key):
                yield join(path, key), NOT_UNICODE
            yield from offences(inner, join(path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from offences(inner, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, NOT_FINITE
    elif isinstance(value, str) and _SURROGATE.search(value):
        yield path, NOT_UNICODE


def explained(text: str, cls: type[msgspec.Struct]) -> InvalidRequest:
    """Turn msgspec's words on a `cls` into an error with the field's path as OpenAI writes it."""
    at = _PATH.search(text)
    path = str(at["path"]).lstrip(".").replace("[...]", "") if at else ""
    if unknown := _UNKNOWN.match(text):
        return unknown_field(unknown["name"], join(path, unknown["name"]))
    if missing := _MISSING.match(text):
        param = join(path, missing["name"])
        return InvalidRequest(f"{param} is required", param=param, code="missing_field")
    reason = text[: at.start()] if at else text
    words = words_of(shape_of(cls), at["path"]) if at and _ENUM.match(reason) else []
    if _NOTHING.match(reason) or (words and all(isinstance(word, bool) for word in words)):
        return InvalidRequest(f"{path} is not supported", param=path, code="unsupported_parameter")
    if words:
        reason = f"{_ENUM.sub('', reason)} is none of {', '.join(map(repr, words))}"
    message = f"{path}: {reason}" if path else reason
    return InvalidRequest(
        message, param=path or None, code="invalid_value" if words else WRONG_TYPE
    )


def unknown_field(name: str, path: str, fields: Collection[str] = ()) -> InvalidRequest:
    """Say so, and which of the `fields` is meant where another server has a name of its own."""
    ours = next((ours for ours in OTHER_NAMES.get(name, ()) if ours in fields), "")
    hint = f": here it is {ours}" if ours else ""
    message = f"unknown field {printable(name)!r}{hint}"
    return InvalidRequest(message, param=printable(path), code=UNKNOWN)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def printable(name: str) -> str:
    """Return `name` fit for a reply: short, and without halves of characters."""
    return name[:MAX_NAME_CHARS].encode("utf-8", "replace").decode()
