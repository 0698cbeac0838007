"""Anthropic's messages → the messages of a conversation, as templates know them."""

from __future__ import annotations

import re

from api_gateway.anthropic.schema import (
    BLOCKS,
    Block,
    CallBlock,
    CallResultBlock,
    Content,
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

BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""What Claude Code writes before its system prompt. It is another in every request, says nothing to
a model, and would let no request find the cached prefix of the one before."""


def messages_of(body: Prompted) -> list[Message]:
    """Return the conversation; raise InvalidRequest that names the block."""
    if not body.messages:
        raise refuse("messages is empty", "messages")
    check_count(body.messages, limits.MAX_MESSAGES, "messages")
    gathering = Gathering()
    if body.system is not None:
        texts = [BILLING.sub("", text, count=1) for text in texts_of(body.system, "system")]
        if system := "\n".join(text for text in texts if text):
            gathering.text("system", system)
    for index, turn in enumerate(body.messages):
        gathering.begin_turn(turn.role)
        param = f"messages[{index}].content"
        for place, block in enumerate(blocks_of(turn.content, turn.role, param)):
            gathering.add(turn.role, block, f"{param}[{place}]")
    return gathering.messages


class Gathering:
    """Adds blocks to messages. What one side says in turn is one message, line by line."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._role: Speaker | None = None

    def begin_turn(self, role: Speaker) -> None:
        """Begin a turn of `role`, which goes on with that role's last one."""
        if role == "assistant" and self._role != "assistant":
            self.messages.append(Message(role="assistant", content=""))
        self._role = role

    def add(self, role: Speaker, block: Block, param: str) -> None:
        if isinstance(block, TextBlock):
            self.text(role, block.text)
        elif isinstance(block, CallResultBlock):
            text = "\n".join(texts_of(block.content or "", f"{param}.content"))
            said = f"Error: {text}" if block.is_error else text
            self.messages.append(Message(role="tool", content=said, tool_call_id=block.tool_use_id))
        elif isinstance(block, CallBlock):
            call = FunctionCall(name=block.name, arguments=dumps(block.input).decode())
            message = self.messages[-1]
            calls = message.tool_calls or []
            message.tool_calls = [*calls, ToolCall(id=block.id, function=call)]
        elif isinstance(block, ThoughtBlock):
            message = self.messages[-1]
            before = [message.reasoning_content] if message.reasoning_content else []
            message.reasoning_content = "\n".join([*before, block.thinking])

    def text(self, role: Speaker, text: str) -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == role:
            assert isinstance(last.content, str)
            last.content = f"{last.content}\n{text}" if last.content else text
        else:
            self.messages.append(Message(role=role, content=text))


def blocks_of(content: Content, role: Speaker, param: str) -> list[Block]:
    """Return the blocks of a message; a plain string is one of text."""
    if isinstance(content, str):
        return [TextBlock(content)]
    check_count(content, limits.MAX_CONTENT_PARTS, param)
    why = f"this server reads text, thoughts and calls of functions, and messages of role {role}"
    return [typed(raw, BLOCKS[role], f"{param}[{index}]", why) for index, raw in enumerate(content)]


def texts_of(content: Content, param: str) -> list[str]:
    """Return the texts of a content that can be nothing else."""
    if isinstance(content, str):
        return [content]
    check_count(content, limits.MAX_CONTENT_PARTS, param)
    kinds, why = {"text": TextBlock}, "this server reads text"
    return [typed(raw, kinds, f"{param}[{index}]", why).text for index, raw in enumerate(content)]
