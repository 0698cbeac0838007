"""The form that an answer must have: response_format and structured_outputs → one Grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api_gateway.parsers.json_schema import binding, closed, inexact
from common.errors import InvalidRequest
from millrace.params_checks import check_texts, invalid
from protos.common_pb2 import Grammar
from protos.limits import MAX_CHOICES, MAX_GRAMMAR_CHARS

STRUCTURED, RESPONSE = "structured_outputs", "response_format"
FORMS = ("json", "regex", "choice", "grammar", "json_object")


def grammar_of(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> Grammar | None:
    """Return what the output must match, None when it is free; raise InvalidRequest.

    Whether it can be compiled is found out where it is.
    """
    response = _response_grammar(response_format)
    structured = _structured_grammar(structured_outputs)
    if response is not None and structured is not None:
        raise InvalidRequest(f"{RESPONSE} and {STRUCTURED} exclude each other", param=STRUCTURED)
    found = response or structured
    if found is not None and len(found.text) > MAX_GRAMMAR_CHARS:
        param = RESPONSE if response is not None else STRUCTURED
        raise invalid(param, f"has more than {MAX_GRAMMAR_CHARS} characters")
    return found


def _response_grammar(given: Mapping[str, Any] | None) -> Grammar | None:
    if given is not None and not isinstance(given, Mapping):
        raise invalid(RESPONSE, f"must be a dict, got {given!r}")
    kind = "text" if given is None else given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema({}, RESPONSE)
    if given is None or kind != "json_schema" or not isinstance(given.get("json_schema"), Mapping):
        raise invalid(RESPONSE, f"must be text, json_object or a json_schema, got {given!r}")
    return _schema(given["json_schema"].get("schema", {}), RESPONSE, is_closed=True)


def _structured_grammar(given: Mapping[str, Any] | None) -> Grammar | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise invalid(STRUCTURED, f"must be a dict, got {given!r}")
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1 or not {*asked} <= {*FORMS}:
        raise invalid(STRUCTURED, f"takes exactly one of {', '.join(FORMS)}, got {given!r}")
    name, value = asked.popitem()
    if name == "json_object":
        return _schema({}, STRUCTURED)
    if name == "json":
        return _schema(value, STRUCTURED)
    if name == "choice":
        check_texts(f"{STRUCTURED}.choice", value, MAX_CHOICES, MAX_GRAMMAR_CHARS)
        if not value:
            raise invalid(STRUCTURED, "has an empty choice")
        return Grammar(kind=Grammar.CHOICE, text=json.dumps(list(value)))
    if not isinstance(value, str):
        raise invalid(f"{STRUCTURED}.{name}", f"must be a string, got {value!r}")
    return Grammar(kind=Grammar.REGEX if name == "regex" else Grammar.LARK, text=value)


def _schema(schema: Any, param: str, is_closed: bool = False) -> Grammar:
    """Read a schema as the gateway does."""
    try:
        value = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
        rounded, bound = inexact(value), binding(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(param, f"has a schema that is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid(param, f"has a schema that is not an object: {schema!r}")
    if rounded is not None:
        raise invalid(param, f"has {str(rounded)[:40]}: too many digits to be kept exactly")
    text = json.dumps(closed(bound) if is_closed else bound)
    return Grammar(kind=Grammar.JSON_SCHEMA, text=text)
