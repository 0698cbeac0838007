"""Anthropic's messages → the messages of a conversation, as templates know them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from api_gateway.anthropic.offered import as_function
from api_gateway.anthropic.schema import (
    BLOCKS,
    RESULTS,
    Block,
    CallBlock,
    CallResultBlock,
    Content,
    OfferedTool,
    Prompted,
    Speaker,
    TextBlock,
    ThoughtBlock,
)
from api_gateway.checks import check_count, refuse
from api_gateway.items import typed
from api_gateway.schema import FunctionCall, Message, ToolCall
from protos import limits
from protos.json_fields import dumps

T = TypeVar("T", bound=msgspec.Struct)
BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""What Claude Code writes before its system prompt. It is another in every request, says nothing to
a model, and would let no request find the cached prefix of the one before."""


def messages_of(body: Prompted) -> list[Message]:
    """Return the conversation; raise InvalidRequest that names the block."""
    if not body.messages:
        raise refuse("messages is empty", "messages")
    gathering = Gathering({tool.name: tool for tool in body.tools or []})
    for text in contents_of(body.system or "", {"text": TextBlock}, "system"):
        gathering.add("system", text, "system")
    for index, turn in enumerate(body.messages):
        param = f"messages[{index}].content"
        if turn.role == "assistant":
            gathering.last("assistant")
        for place, block in enumerate(blocks_of(turn.content, turn.role, param)):
            gathering.add(turn.role, block, f"{param}[{place}]")
    messages = [side.message() for side in gathering.sides]
    if not messages:
        raise refuse("messages say nothing", "messages")
    if len(messages) > limits.MAX_MESSAGES:
        most, count = limits.MAX_MESSAGES, len(messages)
        raise refuse(f"messages: {count} turns and results, {most} are allowed", "messages")
    return messages


@dataclass(slots=True)
class Side:
    """What one side says in turn: one message. A template shows thoughts, text and calls in this
    order, whatever the order of the blocks."""

    role: Speaker
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        """Return it; what an assistant said comes without a line break that it did not write."""
        if self.role != "assistant":
            return Message(role=self.role, content="\n".join(self.texts))
        return Message(
            role="assistant",
            content="".join(self.texts) if self.texts else msgspec.UNSET,
            tool_calls=self.calls or None,
            reasoning_content="\n".join(self.thoughts) or None,
        )


@dataclass(slots=True)
class Result:
    """What a call came to."""

    call_id: str
    text: str

    def message(self) -> Message:
        return Message(role="tool", content=self.text, tool_call_id=self.call_id)


class Gathering:
    """Puts blocks together. `tools` are those that a result may refer to, by name."""

    def __init__(self, tools: Mapping[str, OfferedTool]) -> None:
        self.sides: list[Side | Result] = []
        self._tools = tools
        self._told: set[str] = set()

    def last(self, role: Speaker) -> Side:
        """Return what that side is saying now."""
        last = self.sides[-1] if self.sides else None
        if not isinstance(last, Side) or last.role != role:
            last = Side(role)
            self.sides.append(last)
        return last

    def add(self, role: Speaker, block: Block, param: str) -> None:
        if isinstance(block, TextBlock) and role == "system":
            if text := BILLING.sub("", block.text, count=1):
                self.last(role).texts.append(text)
        elif isinstance(block, TextBlock):
            self.last(role).texts.append(block.text)
        elif isinstance(block, CallResultBlock):
            text = "\n".join(self._result(block.content or "", f"{param}.content"))
            said = f"Error: {text}" if block.is_error else text
            self.sides.append(Result(block.tool_use_id, said))
        elif isinstance(block, CallBlock):
            calls = self.last(role).calls
            if len(calls) == limits.MAX_TOOLS:
                raise refuse(f"{param}: a turn has at most {limits.MAX_TOOLS} calls", param)
            call = FunctionCall(name=block.name, arguments=dumps(block.input).decode())
            calls.append(ToolCall(id=block.id, function=call))
        elif isinstance(block, ThoughtBlock) and block.thinking:
            self.last(role).thoughts.append(block.thinking)

    def _result(self, content: Content, param: str) -> Iterator[str]:
        """Yield the texts of a result; a tool that it refers to is told.

        Once in a conversation: a definition is much longer than what refers to it, and without a
        bound a small body would become any length of prompt. Turns only come behind what is there,
        so that its prefix stays.
        """
        for block in contents_of(content, RESULTS, param):
            if isinstance(block, TextBlock):
                yield block.text
            elif (tool := self._tools.get(name := block.tool_name)) is None:
                yield f"There is no tool {name}."
            elif name in self._told:
                yield f"This tool can be called: {name}"
            else:
                self._told.add(name)
                yield f"This tool can be called now: {dumps(as_function(tool)).decode()}"


def blocks_of(content: Content, role: Speaker, param: str) -> list[Block]:
    """Return the blocks of a message; a plain string is one of text."""
    if isinstance(content, str):
        return [TextBlock(content)]
    check_count(content, limits.MAX_CONTENT_PARTS, param)
    if not content and role != "assistant":
        raise refuse(f"{param} is empty", param)
    why = "this server reads text, thoughts, and calls of functions"
    return [typed(raw, BLOCKS[role], f"{param}[{index}]", why) for index, raw in enumerate(content)]


def contents_of(content: Content, kinds: Mapping[str, type[T]], param: str) -> list[T | TextBlock]:
    """Return a content that is text, or blocks of `kinds`."""
    if isinstance(content, str):
        return [TextBlock(content)]
    check_count(content, limits.MAX_CONTENT_PARTS, param)
    why = "this server reads text"
    return [typed(raw, kinds, f"{param}[{index}]", why) for index, raw in enumerate(content)]
