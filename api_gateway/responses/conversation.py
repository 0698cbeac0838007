"""Input items → the messages of a conversation, as templates know them."""

from __future__ import annotations

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
    gathering = Gathering(messages)
    for index, raw in enumerate(body.input):
        gathering.add(item_of(raw, f"input[{index}]"), f"input[{index}]")
    return messages


class Gathering:
    """Adds items to messages. What an assistant thinks, says and calls in turn is one message."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._turn: Message | None = None

    def add(self, item: Item, param: str) -> None:
        if isinstance(item, MessageItem):
            content = text_of(item.content, f"{param}.content")
            if item.role == "assistant":
                turn = self._assistant(is_new=self._has_ended())
                before = turn.content if isinstance(turn.content, str) else ""
                turn.content = f"{before}{content}"
            else:
                self._append(Message(role=item.role, content=content))
        elif isinstance(item, CallOutputItem):
            output = text_of(item.output, f"{param}.output", is_result=True)
            self._append(Message(role="tool", content=output, tool_call_id=item.call_id))
        elif isinstance(item, CallItem):
            name = full_name(item.namespace, item.name)
            call = FunctionCall(name=name, arguments=item.arguments)
            turn = self._assistant(is_new=False)
            turn.tool_calls = [*(turn.tool_calls or []), ToolCall(id=item.call_id, function=call)]
        else:
            self._think(thoughts_of(item, param))

    def _think(self, thoughts: str) -> None:
        """Add to the turn's thoughts; an item without any, as of a hidden chain, says nothing."""
        if thoughts:
            turn = self._assistant(is_new=self._has_ended())
            before = [turn.reasoning_content] if turn.reasoning_content else []
            turn.reasoning_content = "\n".join([*before, thoughts])

    def _has_ended(self) -> bool:
        """Whether what comes is another turn's: all belongs to calls whose results are to come."""
        turn = self._turn
        return turn is not None and not turn.tool_calls and turn.content is not msgspec.UNSET

    def _assistant(self, is_new: bool) -> Message:
        """Return the assistant's message that is being gathered."""
        if self._turn is None or is_new:
            self._turn = Message(role="assistant")
            self._messages.append(self._turn)
        return self._turn

    def _append(self, message: Message) -> None:
        self._turn = None
        self._messages.append(message)


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
