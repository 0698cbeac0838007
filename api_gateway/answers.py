"""What a chat choice says, by kind: thoughts, content and tool calls, in OpenAI's objects.

Streamed and whole replies take from here; all that a whole reply shows is the sum of the deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api_gateway.parsers.calls import CallDelta
from api_gateway.sessions import Choice
from api_gateway.tools import call_id
from api_gateway.translate import Order
from protos.common_pb2 import LENGTH


@dataclass(slots=True)
class Said:
    """What came since the last look. `calls` are OpenAI's tool call chunks."""

    thoughts: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def delta(self) -> dict[str, Any]:
        """Return the delta of a chunk; nothing that is empty is in it."""
        shown: dict[str, Any] = {}
        if self.thoughts:
            shown |= {"reasoning_content": self.thoughts, "reasoning": self.thoughts}
        if self.content:
            shown["content"] = self.content
        if self.calls:
            shown["tool_calls"] = self.calls
        return shown


class Answer:
    """One choice of a chat reply."""

    def __init__(self, order: Order, request_id: str, choice: Choice) -> None:
        self._request_id = request_id
        self._choice = choice
        self._show_reasoning = order.show_reasoning
        self._parser = order.tools.parser() if order.tools is not None else None
        self.num_calls = 0

    def take(self) -> Said:
        """Return what can be shown now; with the end of the choice, all that was withheld."""
        said = Said(thoughts=self._choice.take_reasoning(), content=self._choice.take_text())
        if not self._show_reasoning:
            said.thoughts = ""
        if self._parser is not None:
            deltas = self._parser.feed(said.content) if said.content else []
            if self._choice.finish is not None:
                deltas += self._parser.end()
            said.content = "".join(delta for delta in deltas if isinstance(delta, str))
            said.calls = [self._chunk(delta) for delta in deltas if isinstance(delta, CallDelta)]
        return said

    def _chunk(self, delta: CallDelta) -> dict[str, Any]:
        if delta.name is None:
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        self.num_calls += 1
        return {
            "index": delta.index,
            "id": call_id(self._request_id, self._choice.index, delta.index),
            "type": "function",
            "function": {"name": delta.name, "arguments": ""},
        }

    def message(self) -> dict[str, Any]:
        """Return the message of a whole reply."""
        said = self.take()
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
        if said.thoughts:
            message |= {"reasoning_content": said.thoughts, "reasoning": said.thoughts}
        if said.calls:
            message["tool_calls"] = whole_calls(said.calls)
        if not said.content and (said.calls or self._was_cut_while_reasoning()):
            message["content"] = None
        return message

    def _was_cut_while_reasoning(self) -> bool:
        finish = self._choice.finish
        return finish is not None and finish.reason == LENGTH and self._choice.num_reasoning > 0


def whole_calls(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tool calls put together from their chunks."""
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        if "id" in chunk:
            function = {"name": chunk["function"]["name"], "arguments": ""}
            calls.append({"id": chunk["id"], "type": "function", "function": function})
        else:
            calls[chunk["index"]]["function"]["arguments"] += chunk["function"]["arguments"]
    return calls
