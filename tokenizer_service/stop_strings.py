"""Finds the first stop string in a text that arrives in pieces, and holds back what may become one.

Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.automaton import Automaton


class StopStrings:
    """The stop strings of one request; immutable, shared by its choices.

    The match is the one that ends first; of several that end together, the longest.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self.include = include
        self.automaton = Automaton(filter(None, stops))
        self.first_chars = frozenset(self.automaton.children[0])


class StopScan:
    """One text's way through the automaton."""

    __slots__ = ("held", "matched", "_state", "_stops")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self.held = ""
        """End of the text so far that may become a stop string."""
        self.matched: str | None = None

    def feed(self, piece: str, may_end: bool = True) -> str:
        """Return the text that is settled by `piece`; nothing may be fed after a match.

        A stop string that is whole within a piece which may not end the text is passed over.
        """
        stops, state = self._stops, self._state
        if not state and stops.first_chars.isdisjoint(piece):
            return piece
        automaton = stops.automaton
        text = self.held + piece
        for at, char in enumerate(piece, len(self.held) + 1):
            state = automaton.next(state, char)
            if (size := automaton.found[state]) and may_end:
                self.matched, self.held = text[at - size : at], ""
                return text[: at if stops.include else at - size]
        self._state = state
        settled = len(text) - automaton.depth[state]
        self.held = text[settled:]
        return text[:settled]
