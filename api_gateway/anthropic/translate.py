"""A request of Anthropic's → the chat request that means the same, and its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api_gateway.anthropic.conversation import messages_of
from api_gateway.anthropic.offered import offered, shown_tools, tools_of
from api_gateway.anthropic.schema import MessagesRequest, OfferedTool, Prompted
from api_gateway.checks import check_bound, refuse
from api_gateway.own_words import own_words
from api_gateway.schema import ChatRequest, JsonSchema, Message, ResponseFormat
from api_gateway.structure import RESPONSE
from api_gateway.translate import Caller, Kind, Order, order_chat
from api_gateway.validation import check_chat

SAME = (
    "priority", "cache_salt", "request_id", "timeout_ms", "max_tokens", "temperature", "top_p",
    "top_k", "seed", "stream",
)  # fmt: skip
"""Fields that chat requests have too."""
OWN_NAMES = (
    (".function.parameters", ".input_schema"),
    (".function", ""),
    ("stop", "stop_sequences"),
    ("thinking_token_budget", "thinking.budget_tokens"),
)


def chat_of(body: Prompted, tools: Mapping[str, OfferedTool]) -> ChatRequest:
    """Return the chat request, checked; raise InvalidRequest with the client's own fields."""
    messages = messages_of(body)
    more: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        check_bound("max_tokens", body.max_tokens)  # a chat's -1 is no length here
        more = {name: getattr(body, name) for name in SAME}
        more["stop"] = body.stop_sequences
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        continue_final_message=is_begun(messages[-1]) or None,
        response_format=response_format_of(body),
        reasoning_effort=effort_of(body),
        chat_template_kwargs=body.chat_template_kwargs,
        thinking_token_budget=body.thinking.budget_tokens if body.thinking else None,
        **more,
        **tools_of(body, tools),
    )
    with own_words(own_names(body), list(tools)):
        check_chat(chat)
    return chat


def order_messages(body: Prompted, caller: Caller) -> Order:
    """Return the order of a request that was read; raise InvalidRequest."""
    tools = offered(body)
    chat = chat_of(body, tools)
    with own_words(own_names(body), list(tools)):
        order = order_chat(chat, caller)
    for request in order.requests:
        request.text.cut_max_tokens = True
        if request.chat.tools_json and (shown := shown_tools(body)):
            request.chat.tools_json = shown
    return replace(
        order,
        kind=Kind.MESSAGE,
        grammar_field=format_field(body),
        show_reasoning=shows_thoughts(body),
    )


def is_begun(last: Message) -> bool:
    """Tell whether the answer is to go on from what the last message says."""
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


def effort_of(body: Prompted) -> Any:
    """Return how much to think: not at all unless it is asked for, as Anthropic has it."""
    if not wants_thoughts(body):
        return "none"
    return (body.output_config.effort if body.output_config else None) or "high"


def wants_thoughts(body: Prompted) -> bool:
    return body.thinking is not None and body.thinking.type != "disabled"


def shows_thoughts(body: Prompted) -> bool:
    """Tell whether thoughts may be in the reply.

    Clients that ask for none take its first block for the answer, and some models cannot be kept
    from thinking.
    """
    if body.thinking is not None and wants_thoughts(body):
        return body.thinking.display != "omitted"
    return (body.chat_template_kwargs or {}).get("enable_thinking") is True


def format_field(body: Prompted) -> str:
    """Return where the client says what form the answer must have."""
    return "output_format" if body.output_format else "output_config.format"


def own_names(body: Prompted) -> tuple[tuple[str, str], ...]:
    field = format_field(body)
    return (("response_format.json_schema", field), (RESPONSE, field), *OWN_NAMES)


def response_format_of(body: Prompted) -> ResponseFormat | None:
    inner = body.output_config.format if body.output_config else None
    if inner and body.output_format:
        raise refuse("output_format and output_config.format: one is enough", "output_format")
    given = inner or body.output_format
    if given is None:
        return None
    return ResponseFormat("json_schema", JsonSchema("answer", given.schema))
