"""Finds the first of many patterns in a sequence that arrives in pieces (Aho and Corasick 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Symbol = TypeVar("Symbol", bound=Hashable)


class Automaton(Generic[Symbol]):
    """A state is the longest end of what was read that begins a pattern; 0 is none.

    So what is found does not depend on where the pieces were cut. Immutable, to be shared.
    """

    def __init__(self, patterns: Iterable[Sequence[Symbol]]) -> None:
        self.children: list[dict[Symbol, int]] = [{}]
        self.depth = [0]
        """By state: how many symbols it stands for."""
        self.found = [0]
        """By state: length of the longest pattern that ends there, 0 for none."""
        self._fallback = [0]
        for pattern in patterns:
            self._insert(pattern)
        self._link()

    def _insert(self, pattern: Sequence[Symbol]) -> None:
        state = 0
        for symbol in pattern:
            child = self.children[state].get(symbol)
            if child is None:
                child = len(self.children)
                self.children[state][symbol] = child
                self.children.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append(0)
                self._fallback.append(0)
            state = child
        self.found[state] = len(pattern)

    def _link(self) -> None:
        """Set each state's fallback: the state of its longest proper end."""
        pending = deque(self.children[0].values())
        while pending:
            state = pending.popleft()
            for symbol, child in self.children[state].items():
                self._fallback[child] = self.next(self._fallback[state], symbol)
                self.found[child] = self.found[child] or self.found[self._fallback[child]]
                pending.append(child)

    def next(self, state: int, symbol: Symbol) -> int:
        """Return the state after `symbol`."""
        while True:
            child = self.children[state].get(symbol)
            if child is not None:
                return child
            if not state:
                return 0
            state = self._fallback[state]
