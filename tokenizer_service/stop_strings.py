"""Finds the first stop string in a text that arrives in pieces, and holds back what may become one.

An Aho-Corasick automaton: its state is the longest end of the text that begins a stop string, so
the result does not depend on where the pieces were cut. Knows no tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of one request's stop strings; immutable, shared by its choices.

    The match is the one that ends first; of several that end together, the longest.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self.include = include
        self.children: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.found: list[str | None] = [None]
        self.fallback = [0]
        for stop in filter(None, stops):
            self._insert(stop)
        self._link()
        self.first_chars = frozenset(self.children[0])

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            child = self.children[state].get(char)
            if child is None:
                child = len(self.children)
                self.children[state][char] = child
                self.children.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append(None)
                self.fallback.append(0)
            state = child
        self.found[state] = stop

    def _link(self) -> None:
        """Set each state's fallback: the state of its longest proper end."""
        pending = deque(self.children[0].values())
        while pending:
            state = pending.popleft()
            for char, child in self.children[state].items():
                self.fallback[child] = self.next(self.fallback[state], char)
                self.found[child] = self.found[child] or self.found[self.fallback[child]]
                pending.append(child)

    def next(self, state: int, char: str) -> int:
        """Return the state after `char`."""
        while True:
            child = self.children[state].get(char)
            if child is not None:
                return child
            if not state:
                return 0
            state = self.fallback[state]


class StopScan:
    """One text's way through the automaton."""

    __slots__ = ("held", "matched", "_state", "_stops")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self.held = ""
        """End of the text so far that may become a stop string."""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """Return the text that is settled by `piece`; nothing may be fed after a match."""
        stops, state = self._stops, self._state
        if not state and stops.first_chars.isdisjoint(piece):
            return piece
        text = self.held + piece
        for at, char in enumerate(piece, len(self.held) + 1):
            state = stops.next(state, char)
            stop = stops.found[state]
            if stop is not None:
                self.matched, self.held = stop, ""
                return text[: at if stops.include else at - len(stop)]
        self._state = state
        settled = len(text) - stops.depth[state]
        self.held = text[settled:]
        return text[:settled]
