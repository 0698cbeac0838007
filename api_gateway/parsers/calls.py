"""What every tool-call format has in common: deltas, and one call object read from growing text.

A parser gives out content and call deltas; their concatenation does not depend on how the text was
cut. A call is shown when it is whole and right, for what is shown cannot be taken back. Where a
grammar forces the format it cannot go wrong: there (`is_eager`) arguments flow as they come.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

QUOTE_OR_BRACKET = re.compile(r'["{}\[\]]')
QUOTE_OR_ESCAPE = re.compile(r'["\\]')
HEAD = r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"%s"\s*:\s*(?=\{)'
SPACE = " \t\r\n"
"""JSON's white space; str.strip() would also take what belongs to the text."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of call number `index`: its name, which comes first and once, or more arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


class Content(str):
    """A part of the text that is no call; `at` is the place of its first character there."""

    __slots__ = ("at",)
    at: int

    def __new__(cls, text: str, at: int) -> Content:
        made = super().__new__(cls, text)
        made.at = at
        return made


Delta = Content | CallDelta
"""Content, or a part of a call."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Which functions may be called, and how."""

    names: Collection[str]
    max_calls: int | None = None
    """What follows the last allowed call is dropped. None = no limit."""
    is_eager: bool = False


class ToolParser(Protocol):
    """Reads the answer of one choice."""

    @property
    def is_cut(self) -> bool:
        """Whether the last call was shown and its arguments are not whole yet."""

    def feed(self, text: str) -> list[Delta]:
        """Return what is certain now."""

    def end(self) -> list[Delta]:
        """Return what was withheld: no more text comes."""


class ToolFormat(Protocol):
    """How a family of models writes its calls."""

    def parser(self, offer: Offer) -> ToolParser:
        """Return a parser for one choice."""

    def grammar(
        self, tools: Sequence[Mapping[str, Any]], is_single: bool, tag_tokens: Collection[str]
    ) -> str:
        """Return rules in llguidance's Lark; `calls` stands for one call, or several.

        `tag_tokens` are the tags that are tokens of the model: Lark calls those by name.
        """


class Malformed(Exception):
    """The text is no call of an offered function."""


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


class ObjectScan:
    """Finds the end of the JSON object that begins at `at`; looks at no character twice."""

    __slots__ = ("_depth", "_in_string", "at")

    def __init__(self, at: int) -> None:
        self.at = at
        self._depth = 0
        self._in_string = False

    def end(self, text: str) -> int | None:
        """Return the index after the object, None while `text` does not reach so far."""
        while True:
            found = (QUOTE_OR_ESCAPE if self._in_string else QUOTE_OR_BRACKET).search(text, self.at)
            if found is None:
                self.at = len(text)
                return None
            char = found[0]
            if char == "\\":
                if found.end() == len(text):  # what it escapes has not come
                    self.at = found.start()
                    return None
                self.at = found.end() + 1
                continue
            self.at = found.end()
            if char == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if char in "{[" else -1
                if self._depth == 0:
                    return self.at


class CallScan:
    """Reads one `{"name": …, KEY: {…}}`. `deltas` are parts that may be shown; take them away."""

    def __init__(self, index: int, key: str, offer: Offer) -> None:
        """`key` is the format's own word for arguments."""
        self.deltas: list[Delta] = []
        self._index = index
        self._key = key
        self._offer = offer
        self._whole = ObjectScan(0)
        self._arguments: ObjectScan | None = None
        self._shown = 0
        self._arguments_end: int | None = None
        self._end: int | None = None

    @property
    def is_shown(self) -> bool:
        return self._arguments is not None

    @property
    def is_cut(self) -> bool:
        """Whether it is shown and its arguments are not whole yet."""
        return self.is_shown and self._arguments_end is None

    def read(self, text: str) -> int | None:
        """Read on in `text`, which begins with the object.

        Returns the index after it, None while it is not whole; raises Malformed.
        """
        if not text.startswith("{"):
            raise Malformed
        if self._end is None:
            self._end = self._whole.end(text)
            if self._offer.is_eager:
                self._flow(text)
            if self._end is not None and not self.is_shown:
                name, arguments = self._decoded(text[: self._end])
                self.deltas.append(CallDelta(self._index, name))
                self.deltas.append(CallDelta(self._index, None, arguments))
        return self._end

    def _flow(self, text: str) -> None:
        """Show the arguments as far as they have come."""
        if self._arguments is None:
            head = re.match(HEAD % self._key, text)
            if head is None or head[1] not in self._offer.names:
                return
            self._arguments, self._shown = ObjectScan(head.end()), head.end()
            self.deltas.append(CallDelta(self._index, head[1]))
        if self._arguments_end is None:
            self._arguments_end = self._arguments.end(text)
            until = len(text) if self._arguments_end is None else self._arguments_end
            if until > self._shown:
                part = text[self._shown : until]
                self.deltas.append(CallDelta(self._index, None, part))
                self._shown = until

    def _decoded(self, text: str) -> tuple[str, str]:
        try:
            call = msgspec.json.decode(text.encode(), type=_Call)
            raw = bytes(call.arguments or call.parameters)
            if self._key == "arguments":
                raw = unwrapped(raw)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise Malformed from error
        if call.name not in self._offer.names or not raw.startswith(b"{"):
            raise Malformed
        return call.name, raw.decode()


def unwrapped(arguments: bytes) -> bytes:
    """Return the object that a model has left out or written as a string, between its tags.

    Raises DecodeError or UnicodeEncodeError where the string holds no object.
    """
    if arguments.startswith(b'"'):
        arguments = msgspec.json.decode(arguments, type=str).strip().encode()
        if arguments:
            msgspec.json.decode(arguments, type=dict)
    return b"{}" if arguments in (b"", b"null") else arguments


class CallParser:
    """What the parser of every format keeps."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._num_calls = 0
        self._text = ""  # not yet given out
        self._num_fed = 0
        self._call: CallScan | None = None

    @property
    def is_cut(self) -> bool:
        return self._call is not None and self._call.is_cut

    def _add(self, text: str) -> None:
        self._text += text
        self._num_fed += len(text)

    def _give_out(self, deltas: list[Delta], size: int | None = None) -> None:
        """Give out so much of the text as content, without a size all."""
        deltas.append(Content(self._text[:size], self._num_fed - len(self._text)))
        self._text = "" if size is None else self._text[size:]


def find_mark(text: str, mark: str) -> tuple[int, int]:
    """Return where `mark` begins, -1 without one, and how much is certain to be content.

    White space before it is none, nor is what may become a part of it.
    """
    at = text.find(mark)
    if at >= 0:
        return at, len(text[:at].rstrip(SPACE))
    size = next((k for k in range(len(mark) - 1, 0, -1) if text.endswith(mark[:k])), 0)
    return at, len(text[: len(text) - size].rstrip(SPACE))
