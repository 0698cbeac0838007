"""The form that an answer must have, read by the gateway's own parser as it stands in a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_gateway import structure
from api_gateway.parsing import parse
from api_gateway.schema import CompletionRequest
from millrace.params_checks import as_json
from protos.common_pb2 import Grammar

Given = Mapping[str, Any] | None


def form_of(response_format: Given, structured_outputs: Given) -> dict[str, Any]:
    """Return the two fields as a body has them; here a schema needs no name."""
    if isinstance(response_format, Mapping):
        schema = response_format.get("json_schema")
        if isinstance(schema, Mapping):
            response_format = {**response_format, "json_schema": {"name": "schema", **schema}}
    return {"response_format": response_format, "structured_outputs": structured_outputs}


def grammar_of(response_format: Given, structured_outputs: Given) -> Grammar | None:
    """Return what the output must match, None when it is free; raise InvalidRequest.

    Whether it can be compiled is found out where it is.
    """
    if response_format is None and structured_outputs is None:
        return None
    form = form_of(response_format, structured_outputs)
    param = next(name for name, value in form.items() if value is not None)
    body = as_json(param, {"model": "", "prompt": "", **form})
    return structure.grammar_of(parse(body, CompletionRequest, False), None)
