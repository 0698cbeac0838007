"""`<tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>`: Hermes, Qwen2, Qwen2.5, Qwen3."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from api_gateway.parsers.call_grammar import quoted, rules
from api_gateway.parsers.calls import (
    SPACE,
    CallParser,
    CallScan,
    Delta,
    Malformed,
    Offer,
    ToolParser,
    find_mark,
)

OPEN, CLOSE, NEWLINE = "<tool_call>", "</tool_call>", "\n"
MAX_GIVEN_UP = 16
"""Each call that was begun and not ended has all text behind it read once more."""


class Hermes:
    """The format; a call may stand anywhere in the text."""

    def parser(self, offer: Offer) -> ToolParser:
        return HermesParser(offer)

    def grammar(
        self, tools: Sequence[Mapping[str, Any]], is_single: bool, tag_tokens: Collection[str]
    ) -> str:
        before = f"{tag(OPEN, tag_tokens)} {quoted(NEWLINE)}"
        after = f"{quoted(NEWLINE)} {tag(CLOSE, tag_tokens)}"
        return rules(tools, is_single, "arguments", (before, after), NEWLINE)


class HermesParser(CallParser):
    """Content is all text but the calls and the white space before them and at the end.

    Text that looks like a call and is none stays content, tags included.
    """

    def __init__(self, offer: Offer) -> None:
        super().__init__(offer)
        self._body_at = 0
        self._is_after_call = False

    def feed(self, text: str) -> list[Delta]:
        self._add(text)
        deltas: list[Delta] = []
        while self._call_step(deltas) if self._call else self._text_step(deltas):
            pass
        return deltas

    def end(self) -> list[Delta]:
        deltas = self.feed(self._missing_tag())
        for _ in range(MAX_GIVEN_UP):
            if self._call is None or self._call.is_shown:
                break
            self._give_up(deltas)
            deltas += self.feed(self._missing_tag())
        else:
            self._call = None  # the rest is text
        is_gap = self._is_after_call and not self._text.strip(SPACE)
        if self._call is None and self._text and not is_gap:
            self._give_out(deltas)
        self._text = ""
        return deltas

    def _text_step(self, deltas: list[Delta]) -> bool:
        """Give out text up to where a call may begin; return whether one does."""
        if self._num_calls == self._offer.max_calls:
            self._text = ""
            return False
        at, cut = find_mark(self._text, OPEN)
        if cut:
            self._give_out(deltas, cut)
            self._is_after_call = False
        if at < 0:
            return False
        self._body_at = at - cut + len(OPEN)
        self._call = CallScan(self._num_calls, "arguments", self._offer)
        return True

    def _call_step(self, deltas: list[Delta]) -> bool:
        """Read on in a call; return whether it has ended, well or badly."""
        assert self._call is not None
        body = self._text[self._body_at :].lstrip(SPACE)
        if not body:
            return False
        try:
            end = self._call.read(body)
            rest = "" if end is None else body[end:].lstrip(SPACE)
            is_whole = rest.startswith(CLOSE)
            if not is_whole and not CLOSE.startswith(rest):
                raise Malformed
        except Malformed:
            if not self._call.is_shown:
                self._give_up(deltas)
                return True
            is_whole, rest = True, CLOSE + rest
        if is_whole or self._call.is_shown:
            deltas += self._call.deltas
            self._call.deltas = []
        if is_whole:
            self._num_calls += 1
            self._call, self._text, self._is_after_call = None, rest[len(CLOSE) :], True
        return is_whole

    def _missing_tag(self) -> str:
        """Return what a call lacks whose object is whole: some models end without the tag."""
        body = self._text[self._body_at :].lstrip(SPACE)
        end = self._call.read(body) if self._call and body else None
        return "" if end is None else CLOSE[len(body[end:].lstrip(SPACE)) :]

    def _give_up(self, deltas: list[Delta]) -> None:
        """Take the tag for text and look on behind it."""
        self._give_out(deltas, self._body_at)
        self._call = None


def tag(text: str, tag_tokens: Collection[str]) -> str:
    """Return a tag in Lark: a token by its name, anything else letter by letter."""
    return text if text in tag_tokens else quoted(text)
