"""`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`: Mistral 7B v0.3, Nemo, Small.

Newer models of Mistral write a name and its arguments without a list: those are not read here.
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
    find_mark,
)

TAG = "[TOOL_CALLS]"


class Mistral:
    """The format; the list may stand anywhere behind its tag, and without one at the begin."""

    def parser(self, offer: Offer) -> ToolParser:
        return MistralParser(offer)

    def grammar(
        self, tools: Sequence[Mapping[str, Any]], is_single: bool, tag_tokens: Collection[str]
    ) -> str:
        return rules(tools, is_single, "arguments", ("", ""), ", ", ("[", "]"))


class MistralParser(CallParser):
    """Content is all text but the lists and the white space around them.

    From what is no call of an offered function on, all is content; the tag, too, of a list that
    begins so.
    """

    def __init__(self, offer: Offer) -> None:
        super().__init__(offer)
        self._at = 0  # in the text, what comes next of the list
        self._wanted = ""  # what may stand there, nothing outside of a list
        self._may_begin = True  # a list without a tag
        self._is_after_list = False

    def feed(self, text: str) -> list[Delta]:
        self._add(text)
        deltas: list[Delta] = []
        while self._list_step(deltas) if self._wanted else self._text_step(deltas):
            pass
        return deltas

    def end(self) -> list[Delta]:
        is_shown = self._call is not None and self._call.is_shown
        is_behind_call = self._is_after_list or (bool(self._wanted) and not self._at)
        is_gap = is_behind_call and not self._text.strip(SPACE)
        deltas: list[Delta] = []
        if self._text and not is_shown and not is_gap:
            self._give_out(deltas)
        self._text = ""
        return deltas

    def _text_step(self, deltas: list[Delta]) -> bool:
        """Give out text up to where a list may begin; return whether one does."""
        if self._num_calls == self._offer.max_calls:
            self._text = ""
            return False
        if self._may_begin:
            body = self._text.lstrip(SPACE)
            if TAG.startswith(body):
                return False
            self._may_begin = False
            if body.startswith("["):
                self._at, self._wanted = len(self._text) - len(body), "["
                if body.startswith(TAG):
                    self._at += len(TAG)
                return True
        at, cut = find_mark(self._text, TAG)
        if cut:
            self._give_out(deltas, cut)
            self._is_after_list = False
        if at < 0:
            return False
        self._at, self._wanted = at - cut + len(TAG), "["
        return True

    def _list_step(self, deltas: list[Delta]) -> bool:
        """Read on in a list, by a bracket, a comma or a call; return whether more may be said."""
        body = self._text[self._at :].lstrip(SPACE)
        if not body:
            return False
        try:
            if body[0] not in self._wanted:
                raise Malformed
            if body[0] == "{":
                return self._read_call(body, deltas)
        except Malformed:
            self._give_up(deltas)
            return True
        if body[0] == "[":
            self._at, self._wanted = len(self._text) - len(body) + 1, "{"
        elif body[0] == ",":
            self._text, self._wanted = body[1:], "{"
        else:
            self._text, self._wanted, self._is_after_list = body[1:], "", True
        return True

    def _read_call(self, body: str, deltas: list[Delta]) -> bool:
        if self._call is None:
            self._call = CallScan(self._num_calls, "arguments", self._offer)
        end = self._call.read(body)
        deltas += self._call.deltas
        self._call.deltas = []
        if end is None:
            return False
        self._num_calls += 1
        self._call, self._text, self._at, self._wanted = None, body[end:], 0, ",]"
        if self._num_calls == self._offer.max_calls:
            self._wanted = ""
        return True

    def _give_up(self, deltas: list[Delta]) -> None:
        """Take what was begun for text, and look on behind it."""
        if self._text[: self._at].strip(SPACE):
            self._give_out(deltas, self._at)
        self._call, self._at, self._wanted = None, 0, ""
