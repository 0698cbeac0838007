"""The body of POST /v1/responses and the items of its input, as OpenAI's clients send them.

Items that were output once come back as they were, so fields of theirs that say nothing here (ids,
statuses, annotations) are passed over; fields of the body are held to, as everywhere.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from api_gateway.schema import Effort, Routing, Scalar, StructuredOutputs

Summary = Literal["auto", "concise", "detailed"]


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the answer; `name` and `schema` are for json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """How much to think. Thoughts are told as they are, whatever summary is asked for."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None


Given = dict[str, Any] | None | msgspec.UnsetType
"""What the response repeats only where it was there."""


class ResponseTool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A function that the model may call, with the fields of a chat's."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    returns: Given = msgspec.field(default=msgspec.UNSET, name="return")
    response: Given = msgspec.UNSET


class Namespace(msgspec.Struct, tag_field="type", tag="namespace", forbid_unknown_fields=True):
    """Functions that go by a name of their own in it, as Codex has those of an MCP server."""

    name: str
    tools: list[ResponseTool]
    description: str = ""


class WebSearch(msgspec.Struct, tag_field="type", tag="web_search"):
    """What Codex always offers. The model is not told of it, so it does not call it."""


class WebSearchPreview(WebSearch, tag_field="type", tag="web_search_preview"):
    """Its older name."""


class ResponseNamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """The tool that must be called."""

    name: str
    type: Literal["function"] = "function"


Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "web_search_call.action.sources"
]
"""Of thoughts there is nothing but their text, and no search is ever made: AI SDK asks for the
sources of searches wherever it offers `web_search`."""


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_obfuscation: Literal[False] | None = None


class ResponseRequest(Routing, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/responses. Nothing is stored: a conversation comes whole with each call."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    include: list[Included] | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool | Namespace | WebSearch | WebSearchPreview] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["disabled"] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    client_metadata: dict[str, str] | None = None  # of Codex, about itself

    @property
    def wants_logprobs(self) -> bool:
        asked = "message.output_text.logprobs" in (self.include or [])
        return asked or self.top_logprobs is not None


class MessageItem(msgspec.Struct):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class CallItem(msgspec.Struct):
    """A function that the model called."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CallOutputItem(msgspec.Struct):
    """What a call came to."""

    call_id: str
    output: str | list[dict[str, Any]]


class ReasoningItem(msgspec.Struct):
    """What the model thought before it answered."""

    summary: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
ITEMS: dict[str, type[Item]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
}
