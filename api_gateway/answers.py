"""What a chat choice says, by kind: thoughts, content and tool calls, in OpenAI's objects.

Streamed and whole replies take from here; all that a whole reply shows is the sum of the deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api_gateway.parsers.calls import CallDelta
from api_gateway.sessions import Choice
from api_gateway.tools import ToolPlan, call_id
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


class CallReader:
    """Reads the tool calls out of one choice's content, in OpenAI's chunks."""

    def __init__(self, plan: ToolPlan | None, request_id: str, choice: int) -> None:
        self._parser = plan.parser() if plan is not None else None
        self._request_id = request_id
        self._choice = choice
        self.num_calls = 0

    def read(self, text: str, is_end: bool) -> tuple[str, list[dict[str, Any]]]:
        """Return the content and the calls that are certain now; at the end, all of them."""
        if self._parser is None:
            return text, []
        deltas = self._parser.feed(text) if text else []
        if is_end:
            deltas += self._parser.end()
        content = "".join(delta for delta in deltas if isinstance(delta, str))
        chunks: list[dict[str, Any]] = []
        for delta in deltas:
            if isinstance(delta, CallDelta):
                self._add(chunks, delta)
        return content, chunks

    def _add(self, chunks: list[dict[str, Any]], delta: CallDelta) -> None:
        """Add a part; stock clients expect one entry a call among those that come together."""
        if delta.name is not None:
            self.num_calls += 1
            chunks.append(
                {
                    "index": delta.index,
                    "id": call_id(self._request_id, self._choice, delta.index),
                    "type": "function",
                    "function": {"name": delta.name, "arguments": ""},
                }
            )
        elif chunks and chunks[-1]["index"] == delta.index:
            chunks[-1]["function"]["arguments"] += delta.arguments
        else:
            chunks.append({"index": delta.index, "function": {"arguments": delta.arguments}})


class Answer:
    """One choice of a chat reply."""

    def __init__(self, order: Order, request_id: str, choice: Choice) -> None:
        self._choice = choice
        self._show_reasoning = order.show_reasoning
        self._calls = CallReader(order.tools, request_id, choice.index)

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls

    def take(self) -> Said:
        """Return what can be shown now; with the end of the choice, all that was withheld."""
        thoughts, is_end = self._choice.take_reasoning(), self._choice.finish is not None
        content, calls = self._calls.read(self._choice.take_text(), is_end)
        return Said(thoughts if self._show_reasoning else "", content, calls)

    def message(self) -> dict[str, Any]:
        """Return the message of a whole reply."""
        said = self.take()
        message = {"role": "assistant", "content": "", "refusal": None, **said.delta()}
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
            function = dict(chunk["function"])
            calls.append({"id": chunk["id"], "type": "function", "function": function})
        else:
            calls[chunk["index"]]["function"]["arguments"] += chunk["function"]["arguments"]
    return calls
