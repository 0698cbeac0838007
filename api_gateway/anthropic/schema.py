"""The body of POST /v1/messages and the blocks of its contents, as Anthropic's clients send them.

Blocks that were output once come back as they were, and any block may carry marks for a cache that
is automatic here: fields of theirs that say nothing here are passed over. Fields of the body are
held to, as everywhere.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from api_gateway.schema import Scalar

Content = str | list[dict[str, Any]]
Speaker = Literal["user", "assistant", "system"]


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Speaker
    content: Content


class OfferedTool(msgspec.Struct):
    """A function that the model may call; marks for caches and streams are passed over.

    One whose loading is deferred may be called once the result of a call has referred to it.
    """

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    """`name` is for the type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to think, how long at most, and whether to show it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted", "updates", "highlights"] | None = None


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: None = None


class Note(msgspec.Struct, forbid_unknown_fields=True):
    """The client's note to itself: it changes nothing."""

    user_id: str | None = None


class Prompted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What makes the prompt: the body of POST /v1/messages/count_tokens.

    `cache_control` asks for what is always done: prefixes are cached.
    """

    model: str
    messages: list[Turn]
    system: Content | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of output_config.format
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None  # ours, and vLLM's


class MessagesRequest(Prompted, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/messages; the last five are ours."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: Note | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout_ms: int | None = None
    seed: int | None = None


class TextBlock(msgspec.Struct):
    text: str


class ThoughtBlock(msgspec.Struct):
    """What the model thought before it answered."""

    thinking: str


class HiddenThoughtBlock(msgspec.Struct):
    """Thoughts that nobody here can read."""


class CallBlock(msgspec.Struct):
    """A function that the model called."""

    id: str
    name: str
    input: dict[str, Any]


class CallResultBlock(msgspec.Struct):
    """What a call came to."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class ReferenceBlock(msgspec.Struct):
    """A tool that a search among those whose loading is deferred has found."""

    tool_name: str


Block = TextBlock | ThoughtBlock | HiddenThoughtBlock | CallBlock | CallResultBlock
BLOCKS: dict[Speaker, dict[str, type[Block]]] = {
    "user": {"text": TextBlock, "tool_result": CallResultBlock},
    "assistant": {
        "text": TextBlock,
        "thinking": ThoughtBlock,
        "redacted_thinking": HiddenThoughtBlock,
        "tool_use": CallBlock,
    },
    "system": {"text": TextBlock},
}
"""By the role of the message."""
REFERENCE = "tool_reference"
RESULTS: dict[str, type[TextBlock] | type[ReferenceBlock]] = {
    "text": TextBlock,
    REFERENCE: ReferenceBlock,
}
"""What the result of a call may be made of."""
