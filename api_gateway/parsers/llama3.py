"""`{"name": …, "parameters": {…}}` as the whole answer: Llama 3.1 and 3.2.

Several calls are separated by `;`. `<|python_tag|>` may stand in front.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from api_gateway.parsers.call_grammar import rules
from api_gateway.parsers.calls import (
    SPACE,
    CallParser,
    CallScan,
    Delta,
    Malformed,
    Offer,
    ToolParser,
)

TAG = "<|python_tag|>"


class Llama3:
    """The format; an answer that does not begin with a call has none."""

    def parser(self, offer: Offer) -> ToolParser:
        return Llama3Parser(offer)

    def grammar(
        self, tools: Sequence[Mapping[str, Any]], is_single: bool, tag_tokens: Collection[str]
    ) -> str:
        return rules(tools, is_single, "parameters", ("", ""), "; ")


class Llama3Parser(CallParser):
    """From the first text that is no call on, all is content."""

    def __init__(self, offer: Offer) -> None:
        super().__init__(offer)
        self._is_plain = False

    def feed(self, text: str) -> list[Delta]:
        self._add(text)
        deltas: list[Delta] = []
        while not self._is_plain and self._step(deltas):
            pass
        if self._is_plain and self._text:
            self._give_out(deltas)
        return deltas

    def end(self) -> list[Delta]:
        is_content = self._text and not (self._call is not None and self._call.is_shown)
        deltas: list[Delta] = []
        if is_content and (not self._num_calls or self._text.strip(SPACE)):
            self._give_out(deltas)
        self._text = ""
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """Read one call; return whether more may be said now."""
        if self._num_calls == self._offer.max_calls:
            self._text = ""
            return False
        body = self._begin()
        if body is None:
            return False
        call = self._call = self._call or CallScan(self._num_calls, "parameters", self._offer)
        try:
            end = call.read(body)
        except Malformed:
            self._is_plain = True
            return False
        deltas += call.deltas
        call.deltas = []
        if end is None:
            return False
        self._num_calls += 1
        self._call, self._text = None, body[end:]
        return True

    def _begin(self) -> str | None:
        """Return the text from a call's first character on, None while that has not come."""
        body = self._text.lstrip(SPACE)
        if self._num_calls:
            body = body.removeprefix(";").lstrip(SPACE)
        elif body.startswith(TAG):
            body = body[len(TAG) :].lstrip(SPACE)
        elif TAG.startswith(body):
            return None
        if self._num_calls and body and not body.startswith("{"):
            self._text = body
        return body or None
