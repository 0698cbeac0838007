"""A request for a response → the chat request that means the same, and its order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from api_gateway.checks import check_bound, refuse
from api_gateway.own_words import own_words
from api_gateway.responses.conversation import messages_of
from api_gateway.responses.offered import Offered, offered
from api_gateway.responses.schema import ResponseNamedTool, ResponseRequest, TextFormat
from api_gateway.schema import (
    ChatRequest,
    FunctionName,
    JsonSchema,
    NamedTool,
    ResponseFormat,
)
from api_gateway.structure import RESPONSE
from api_gateway.translate import Caller, Kind, Order, order_chat
from api_gateway.validation import check_chat
from protos.common_pb2 import SamplingParams

SAME = (
    "model", "priority", "cache_salt", "request_id", "timeout_ms", "user", "metadata",
    "prompt_cache_key", "safety_identifier",
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "top_logprobs", "stream", "parallel_tool_calls",
    "stop", "stop_token_ids", "ignore_eos", "chat_template_kwargs", "structured_outputs",
    "thinking_token_budget", "include_stop_str_in_output", "skip_special_tokens", "logit_bias",
)  # fmt: skip
"""Fields that chat requests have too."""
USED = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""How an answer is drawn, as far as a response tells it."""
OWN_NAMES = (
    ("response_format.json_schema", "text.format"),
    (RESPONSE, "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_tokens", "max_output_tokens"),
    ("messages", "input"),
    (".function", ""),
)


def chat_of(body: ResponseRequest, tools: Offered) -> ChatRequest:
    """Return the chat request, checked; raise InvalidRequest with the client's own fields."""
    messages = messages_of(body)
    check_bound("max_output_tokens", body.max_output_tokens, "max_tokens")
    chat = ChatRequest(
        **{name: getattr(body, name) for name in SAME},
        messages=messages,
        max_tokens=body.max_output_tokens,
        logprobs=body.wants_logprobs or None,
        tools=None if body.tools is None else tools.functions,
        tool_choice=tool_choice_of(body),
        response_format=response_format_of(body.text.format if body.text else None),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
    )
    with own_words(OWN_NAMES, tools.places):
        check_chat(chat)
    return chat


def order_response(body: ResponseRequest, caller: Caller) -> Order:
    """Return the order of a request that was read; raise InvalidRequest."""
    tools = offered(body.tools or [])
    chat = chat_of(body, tools)
    with own_words(OWN_NAMES, tools.places):
        order = order_chat(chat, caller)
    field = "text.format" if order.grammar_field == RESPONSE else order.grammar_field
    return replace(
        order,
        kind=Kind.RESPONSE,
        grammar_field=field,
        length_field="max_output_tokens",
        asked=asked_of(body, tools) | used_of(order.requests[0].sampling, caller.info.sampling),
        namespaces=tools.namespaces,
    )


def tool_choice_of(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    if isinstance(choice, ResponseNamedTool):
        return NamedTool(function=FunctionName(choice.name))
    return choice


def response_format_of(given: TextFormat | None) -> ResponseFormat | None:
    if given is None:
        return None
    if given.type != "json_schema":
        if given.schema is not None:
            raise refuse("text.format.schema is for the type json_schema", "text.format.schema")
        return ResponseFormat(given.type)
    if given.name is None or given.schema is None:
        missing = "name" if given.name is None else "schema"
        param = f"text.format.{missing}"
        raise refuse(f"{param} is required with type json_schema", param, "missing_field")
    shape = JsonSchema(given.name, given.schema, given.description, given.strict)
    return ResponseFormat("json_schema", shape)


def asked_of(body: ResponseRequest, tools: Offered) -> dict[str, Any]:
    """Return what a response repeats of its request, in OpenAI's fields."""
    reasoning, text = body.reasoning, body.text
    given = text.format if text and text.format else TextFormat("text")
    shape = {k: v for k, v in msgspec.to_builtins(given).items() if v is not None}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "text": {"format": shape, "verbosity": "medium"},
        "tool_choice": msgspec.to_builtins(body.tool_choice) or "auto",
        "tools": tools.shown,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "user": body.user,
    }


def used_of(given: SamplingParams, defaults: SamplingParams) -> dict[str, float | None]:
    """Return what the answer is drawn by, where a client may compare it with what it asked for.

    It is null where a tokenizer of an older version does not tell what the model's folder says.
    """
    used = SamplingParams()
    used.CopyFrom(defaults)
    used.MergeFrom(given)
    return {name: getattr(used, name) if used.HasField(name) else None for name in USED}
