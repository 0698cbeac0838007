"""What one answer has come to, in blocks: thoughts, speech and calls, opened, added to and closed.

At most one block is open. Replies in one piece go the same way and pass the events over. What a
block is called and shown as is the route's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from api_gateway.answers import Said
from api_gateway.parsers.calls import Content

Shown = dict[str, Any]
Placed = tuple[int, Shown]
"""The logprobs of a token, behind the place of its first character in the answer's text."""
COMPLETED, INCOMPLETE = "completed", "incomplete"


class Block(Protocol):
    """One that is open. All return the events of it."""

    def begin(self) -> bytes: ...
    def add(self, text: str, logprobs: Sequence[Shown] = ()) -> bytes: ...
    def end(self, status: str) -> tuple[bytes, Shown]:
        """Return the block as it is shown, too."""
        ...


class Maker(Protocol):
    """Makes the blocks of a route; `index` is the place in the answer."""

    def thoughts(self, index: int) -> Block: ...
    def speech(self, index: int) -> Block: ...
    def call(self, index: int, call_id: str, name: str) -> Block: ...


class Of(Enum):
    """What the open block is of."""

    NOTHING = 0
    THOUGHTS = 1
    SPEECH = 2
    CALL = 3


class Output:
    """`blocks` are those that are closed."""

    def __init__(self, make: Maker) -> None:
        self.blocks: list[Shown] = []
        self._make = make
        self._open: Block | None = None
        self._of = Of.NOTHING
        self._logprobs: list[Placed] = []  # of text that is withheld
        self._has_called = False

    def take(self, said: Said, logprobs: Sequence[Placed] = ()) -> bytes:
        """Take what was said; return the events."""
        told, parts = b"", list(said.parts)
        self._logprobs += logprobs
        first = parts[0] if parts else None
        if isinstance(first, dict) and "id" not in first:  # of the call that is open
            told += self._call(first)
            parts.pop(0)
        if said.thoughts:
            if self._of is not Of.THOUGHTS:
                told += self._begin(Of.THOUGHTS, self._make.thoughts(self._index))
            told += self._add(said.thoughts)
        for part in parts:
            if isinstance(part, Content):
                told += self._speak(part, part.at, part.at + len(part))
            else:
                told += self._speak(part) if isinstance(part, str) else self._call(part)
        return told

    def end(self, status: str) -> bytes:
        """Close what is open; an answer without blocks says nothing in one."""
        told = b""
        if self._index == 0 or self._logprobs and self._of is Of.SPEECH:
            told += self._speak("")
        return told + self._close(status)

    def cut(self) -> bytes:
        """Close what is open, unfinished."""
        return self._close(INCOMPLETE)

    @property
    def _index(self) -> int:
        """Of the block that comes next."""
        return len(self.blocks) + (self._open is not None)

    def _speak(self, text: str, begin: int = 0, end: float = math.inf) -> bytes:
        """Say `text` with the logprobs of the tokens that begin in it.

        Those before it are the calls'; without calls, of blank lines behind the thoughts.
        """
        told = b""
        if self._of is not Of.SPEECH:
            told = self._begin(Of.SPEECH, self._make.speech(self._index))
        waiting, is_first = self._logprobs, not self._has_called
        shown = [row for at, row in waiting if at < end and (is_first or at >= begin)]
        self._logprobs = [row for row in waiting if row[0] >= end]
        return told + self._add(text, shown)

    def _call(self, chunk: Shown) -> bytes:
        told, function = b"", chunk["function"]
        if "id" in chunk:
            block = self._make.call(self._index, chunk["id"], function["name"])
            told, self._has_called = self._begin(Of.CALL, block), True
        assert self._of is Of.CALL
        return told + (self._add(function["arguments"]) if function["arguments"] else b"")

    def _add(self, text: str, logprobs: Sequence[Shown] = ()) -> bytes:
        assert self._open is not None
        return self._open.add(text, logprobs)

    def _begin(self, of: Of, block: Block) -> bytes:
        told = self._close(COMPLETED)
        self._open, self._of = block, of
        return told + block.begin()

    def _close(self, status: str) -> bytes:
        if self._open is None:
            return b""
        told, block = self._open.end(status)
        self.blocks.append(block)
        self._open, self._of = None, Of.NOTHING
        return told
