"""Input items → the messages of a conversation, as templates know them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from api_gateway.checks import check_count, refuse
from api_gateway.items import typed
from api_gateway.responses.offered import full_name
from api_gateway.responses.schema import (
    ITEMS,
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    ResponseRequest,
)
from api_gateway.schema import FunctionCall, Message, ToolCall
from protos import limits

TEXTS = {
    "input_text": "text", "output_text": "text", "text": "text", "reasoning_text": "text",
    "summary_text": "text", "refusal": "refusal",
}  # fmt: skip
"""Kinds of parts, and where their text stands."""
NO_IMAGE = "[an image, which this model cannot see: it reads text]"


def messages_of(body: ResponseRequest) -> list[Message]:
    """Return the conversation; raise InvalidRequest that names the item."""
    messages = []
    if body.instructions is not None:
        messages.append(Message(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, Message(role="user", content=body.input)]
    if not body.input:
        raise refuse("input is empty", "input")
    check_count(body.input, limits.MAX_MESSAGES, "input")
    gathering = Gathering()
    for index, raw in enumerate(body.input):
        gathering.add(item_of(raw, f"input[{index}]"), f"input[{index}]")
    said = [side.message() if isinstance(side, Turn) else side for side in gathering.sides]
    return [*messages, *said]


@dataclass(slots=True)
class Turn:
    """What an assistant thinks, says and calls in turn: one message."""

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether what comes is another turn's: all belongs to calls whose results are to come."""
        return bool(self.texts) and not self.calls

    def message(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self.texts) if self.texts else msgspec.UNSET,
            tool_calls=self.calls or None,
            reasoning_content="\n".join(self.thoughts) or None,
        )


class Gathering:
    """Puts items together."""

    def __init__(self) -> None:
        self.sides: list[Turn | Message] = []

    def add(self, item: Item, param: str) -> None:
        if isinstance(item, MessageItem):
            content = text_of(item.content, f"{param}.content")
            if item.role == "assistant":
                self._turn().texts.append(content)
            else:
                self.sides.append(Message(role=item.role, content=content))
        elif isinstance(item, CallOutputItem):
            output = text_of(item.output, f"{param}.output", is_result=True)
            self.sides.append(Message(role="tool", content=output, tool_call_id=item.call_id))
        elif isinstance(item, CallItem):
            name = full_name(item.namespace, item.name)
            call = FunctionCall(name=name, arguments=item.arguments)
            calls = self._turn(may_end=False).calls
            if len(calls) == limits.MAX_TOOLS:
                raise refuse(f"{param}: a turn has at most {limits.MAX_TOOLS} calls", param)
            calls.append(ToolCall(id=item.call_id, function=call))
        elif thoughts := thoughts_of(item, param):  # without any, as of a hidden chain, of no turn
            self._turn().thoughts.append(thoughts)

    def _turn(self, may_end: bool = True) -> Turn:
        """Return the assistant's turn that is being gathered."""
        last = self.sides[-1] if self.sides else None
        if not isinstance(last, Turn) or (may_end and last.has_ended):
            last = Turn()
            self.sides.append(last)
        return last


def item_of(raw: dict[str, Any], param: str) -> Item:
    """Return an item by its type; without one it is a message."""
    why = "nothing is stored here, and the tools are functions"
    if raw.get("type") == "item_reference":  # what the AI SDK sends unless it is told so
        why = "nothing is stored here: with store: false clients send the items themselves"
    return typed(raw, ITEMS, param, why, default="message")


def text_of(content: str | list[dict[str, Any]], param: str, is_result: bool = False) -> str:
    """Return a content as one text, its parts line by line as in chat requests."""
    if isinstance(content, str):
        return content
    check_count(content, limits.MAX_CONTENT_PARTS, param)
    parts = enumerate(content)
    return "\n".join(part_text(part, f"{param}[{index}]", is_result) for index, part in parts)


def part_text(part: dict[str, Any], param: str, is_result: bool) -> str:
    """Return the text of a part. Of the result of a call (`is_result`) the model is told which
    images it cannot see: it has asked for them, and Codex could never take them back."""
    kind = part.get("type")
    if is_result and kind == "input_image":
        return NO_IMAGE
    name = TEXTS.get(kind) if isinstance(kind, str) else None
    if name is None:
        raise refuse(
            f"{param}: content parts of type {str(kind)[:40]!r} are not supported: this server "
            "reads text",
            f"{param}.type",
            "unsupported_content",
        )
    if not isinstance(part.get(name), str):
        raise refuse(f"{param}.{name} must be a string", f"{param}.{name}", "invalid_type")
    return str(part[name])


def thoughts_of(item: ReasoningItem, param: str) -> str:
    """Return the thoughts, or what stands for them."""
    if item.content:
        return text_of(item.content, f"{param}.content")
    return text_of(item.summary or [], f"{param}.summary")
