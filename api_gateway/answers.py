"""What a chat choice says, by kind: thoughts, content and tool calls, in OpenAI's objects.

Streamed and whole replies take from here; all that a whole reply shows is the sum of the deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api_gateway.parsers.calls import SPACE, CallDelta
from api_gateway.sessions import Choice
from api_gateway.tools import ToolPlan, call_id
from api_gateway.translate import Order
from protos.common_pb2 import LENGTH

Part = str | dict[str, Any]
"""Content, which knows its place if calls may stand beside it, or one of OpenAI's call chunks."""


@dataclass(slots=True)
class Said:
    """What came since the last look: thoughts, then the parts in turn."""

    thoughts: str = ""
    parts: list[Part] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [part for part in self.parts if isinstance(part, dict)]

    def delta(self) -> dict[str, Any]:
        """Return the delta of a chunk; nothing that is empty is in it."""
        shown: dict[str, Any] = {}
        if self.thoughts:
            shown |= {"reasoning_content": self.thoughts, "reasoning": self.thoughts}
        if content := self.content:
            shown["content"] = content
        if calls := self.calls:
            shown["tool_calls"] = calls
        return shown


class CallReader:
    """Reads the tool calls out of one choice's content, in OpenAI's chunks."""

    def __init__(self, plan: ToolPlan | None, request_id: str, choice: int) -> None:
        self._parser = plan.parser() if plan is not None else None
        self._is_forced = plan is not None and plan.is_forced
        self._request_id = request_id
        self._choice = choice
        self._blanks: list[str] = []  # they decide nothing: a long run is read once, at its end
        self.num_calls = 0

    @property
    def are_whole(self) -> bool:
        """Whether there are calls, and each can be run."""
        return self.num_calls > 0 and self._parser is not None and not self._parser.is_cut

    def read(self, text: str, is_end: bool) -> list[Part]:
        """Return the content and the calls that are certain now, in turn; at the end, all."""
        if self._parser is None:
            return [text] if text else []
        self._blanks.append(text)
        if not is_end and not text.strip(SPACE):
            return []
        text, self._blanks = "".join(self._blanks), []
        deltas = self._parser.feed(text) if text else []
        if is_end:
            deltas += self._parser.end()
        parts: list[Part] = []
        for delta in deltas:
            if isinstance(delta, CallDelta):
                self._add(parts, delta)
            elif not self._is_forced:  # or it is the begin of a call that was cut before its name
                parts.append(delta)
        return parts

    def _add(self, parts: list[Part], delta: CallDelta) -> None:
        """Add a part; stock clients expect one entry a call among those that come together."""
        last = parts[-1] if parts else ""
        if delta.name is not None:
            self.num_calls += 1
            parts.append(
                {
                    "index": delta.index,
                    "id": call_id(self._request_id, self._choice, delta.index),
                    "type": "function",
                    "function": {"name": delta.name, "arguments": ""},
                }
            )
        elif isinstance(last, dict) and last["index"] == delta.index:
            last["function"]["arguments"] += delta.arguments
        else:
            parts.append({"index": delta.index, "function": {"arguments": delta.arguments}})


class Answer:
    """One choice of a chat reply."""

    def __init__(self, order: Order, request_id: str, choice: Choice) -> None:
        self._choice = choice
        self._show_reasoning = order.show_reasoning
        self._calls = CallReader(order.tools, request_id, choice.index)

    @property
    def has_calls(self) -> bool:
        """Whether it calls functions, and does not end within a call."""
        return self._calls.are_whole

    def take(self) -> Said:
        """Return what can be shown now; with the end of the choice, all that was withheld."""
        thoughts, is_end = self._choice.take_reasoning(), self._choice.finish is not None
        parts = self._calls.read(self._choice.take_text(), is_end)
        return Said(thoughts if self._show_reasoning else "", parts)

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
