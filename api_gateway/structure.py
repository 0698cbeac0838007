"""Which form the answer must have: response_format, structured_outputs and tools → one Grammar.

The text tier judges what stands in it; here only shapes and sizes are checked.
"""

from __future__ import annotations

import re
from typing import Any

from api_gateway.checks import check_text, check_texts, refuse, schema_text
from api_gateway.parsers.call_grammar import ANY_OBJECT, forced, spaced
from api_gateway.parsers.json_schema import beyond_64_bits, binding, closed, inexact
from api_gateway.schema import Fields, ResponseFormat, StructuredOutputs
from api_gateway.tools import NAME, ToolPlan
from common.errors import ServiceError
from protos import limits
from protos.common_pb2 import Grammar
from protos.json_fields import dumps, loads

LINE = re.compile(r"\bat (\d+)\(\d+\): ")
FORMS = ("json", "regex", "choice", "grammar", "json_object")
STRUCTURED, RESPONSE = "structured_outputs", "response_format"


def grammar_of(body: Fields, plan: ToolPlan | None) -> Grammar | None:
    """Return what the output must match, None when it is free; raise InvalidRequest."""
    schema, field = wanted_schema(body.response_format), RESPONSE
    if (given := body.structured_outputs) is not None:
        if schema is not None:
            raise refuse("response_format and structured_outputs exclude each other", STRUCTURED)
        form, value = the_form(given)
        if not form.startswith("json"):
            if plan is not None:
                raise refuse(f"{STRUCTURED}.{form} excludes tools", STRUCTURED)
            return text_grammar(form, value)
        schema, field = structured_schema(given, form, value), STRUCTURED
    if plan is None:
        if schema is None:
            return None
        text = schema_text(schema, field) if schema else "{}"
        return Grammar(kind=Grammar.JSON_SCHEMA, text=text)
    if plan.is_forced or schema is not None:
        check_tool_numbers(body, plan)
    if (calls := plan.grammar()) is not None:
        return lark(calls, "tools")  # a call that must come leaves no other answer to form
    if schema is None:
        return None
    return lark(forced(plan.calls_grammar, schema or ANY_OBJECT), field)


def check_tool_numbers(body: Fields, plan: ToolPlan) -> None:
    """Check the tools that a grammar is made of; others are only shown to the model."""
    for index, tool in enumerate(getattr(body, "tools", None) or []):
        if tool.function.name in plan.offer.names:
            check_numbers(tool.function.parameters, f"tools[{index}].function.parameters")


def check_numbers(schema: Any, param: str) -> None:
    """Refuse what would not be kept to: an id of 64 bits in an enum would come out rounded."""
    if (value := inexact(schema)) is not None:
        why = "has too many digits to be kept exactly; give it as a string"
        raise refuse(f"{param}: {str(value)[:40]} {why}", param)
    if (bound := beyond_64_bits(schema)) is not None:
        raise refuse(f"{param}: no integers of 64 bits lie beyond {str(bound)[:40]}", param)


def grammar_field(structured_outputs: object) -> str:
    """Return the field, other than tools, that an invalid grammar has come from."""
    return RESPONSE if structured_outputs is None else STRUCTURED


def blamed(error: ServiceError, field: str, plan: ToolPlan | None, grammar: str) -> ServiceError:
    """Return the error, a grammar's with the client's own words for its place.

    The tiers below see one kind of grammar for several fields: `field`, and the tools of `plan`. Of
    those and a schema the client wrote neither the rules nor the lines.
    """
    if error.code not in ("invalid_grammar", "grammar_limit"):
        return error
    if plan is None:
        message = error.message.replace(f"{error.param}:", f"{field}:", 1)
        return type(error)(message, param=field, code=error.code)
    rule, why, lines = "", error.message.removeprefix(f"{error.param}: "), grammar.splitlines()
    at = LINE.search(why)
    if at is not None and int(at[1]) <= len(lines):
        rule, why = lines[int(at[1]) - 1].partition(":")[0], why[at.end() :]
    if rule == "answer":
        return type(error)(f"{field}: {first_line(why)}", param=field, code=error.code)
    number = rule.removeprefix("arguments_")
    where = f"{plan.names[int(number)]}: " if number.isdigit() else ""
    return type(error)(f"tools: {where}{first_line(why)}", param="tools", code=error.code)


def first_line(text: str) -> str:
    """Return what says why; llguidance then shows the grammar."""
    return text.partition("\n")[0]


def lark(text: str, param: str) -> Grammar:
    check_text(text, param, limits.MAX_GRAMMAR_CHARS)
    return Grammar(kind=Grammar.LARK, text=text)


def wanted_schema(response: ResponseFormat | None) -> dict[str, Any] | None:
    """Return the JSON Schema of the answer; empty = any object, None = any text."""
    if response is None:
        return None
    if (response.type == "json_schema") != (response.json_schema is not None):
        param = f"{RESPONSE}.json_schema"
        wrong = "not allowed" if response.json_schema is not None else "required"
        raise refuse(f"{param} is {wrong} with type {response.type}", param)
    if response.schema is not None:
        if response.type != "json_object":
            raise refuse(f"{RESPONSE}.schema is for the type json_object", f"{RESPONSE}.schema")
        return bound(response.schema, f"{RESPONSE}.schema")
    if response.type == "text":
        return None
    if response.json_schema is None:
        return {}
    if not NAME.fullmatch(response.json_schema.name):
        param = f"{RESPONSE}.json_schema.name"
        most = limits.MAX_TOOL_NAME_CHARS
        raise refuse(f"{param} must be 1 to {most} of A-Z a-z 0-9 _ -", param)
    return bound(response.json_schema.schema or {}, f"{RESPONSE}.json_schema.schema")


def bound(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """Return a schema as it binds an answer; raise InvalidRequest."""
    schema_text(schema, param)
    check_numbers(schema, param)
    return dict(binding(closed(schema)))


def the_form(given: StructuredOutputs) -> tuple[str, Any]:
    """Return which form is asked for and what is said of it; raise InvalidRequest."""
    asked = {name: value for name in FORMS if (value := getattr(given, name)) is not None}
    if len(asked) != 1:
        raise refuse(f"{STRUCTURED} takes exactly one of {', '.join(FORMS)}", STRUCTURED)
    form, value = asked.popitem()
    for option in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(given, option) and not form.startswith("json"):
            raise refuse(f"{STRUCTURED}.{option} is for json", f"{STRUCTURED}.{option}")
    return form, value


def structured_schema(given: StructuredOutputs, form: str, value: Any) -> dict[str, Any]:
    """Return the JSON Schema of the forms json and json_object; empty = any object."""
    schema: dict[str, Any] = {}
    if form == "json":
        param = f"{STRUCTURED}.{form}"
        schema = parsed(value, param)
        schema_text(schema, param)
        check_numbers(schema, param)
        schema = dict(binding(closed(schema) if given.disable_additional_properties else schema))
    if given.disable_any_whitespace:
        schema = spaced(schema or ANY_OBJECT)
    return schema


def text_grammar(form: str, value: Any) -> Grammar:
    """Return the grammar of the forms regex, choice and grammar."""
    param = f"{STRUCTURED}.{form}"
    if form == "choice":
        if not value:
            raise refuse(f"{param} is empty", param)
        check_texts(value, param, limits.MAX_CHOICES, limits.MAX_GRAMMAR_CHARS)
        text = dumps(value).decode()
        check_text(text, param, limits.MAX_GRAMMAR_CHARS)
        return Grammar(kind=Grammar.CHOICE, text=text)
    check_text(value, param, limits.MAX_GRAMMAR_CHARS)
    return Grammar(kind=Grammar.REGEX if form == "regex" else Grammar.LARK, text=value)


def parsed(schema: str | dict[str, Any], param: str) -> dict[str, Any]:
    """Return a schema that may be given as text."""
    if isinstance(schema, dict):
        return schema
    try:
        value = loads(schema)
    except ValueError as error:
        raise refuse(f"{param} is not valid JSON: {error}", param) from error
    if not isinstance(value, dict):
        raise refuse(f"{param} must be a JSON object", param)
    return value
