"""What may come first, last and behind each thing in an expression of EBNF, and in a lexeme.

After Glushkov: sets of things are bits of a number, and an automaton is such sets alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleRefNode,
)

from tokenizer_service.ebnf import characters, first_bytes

MOST_STEPS = 200_000
"""Of looking through one grammar, each of a microsecond or two."""
MOST_COPIES = 8
"""Of a part that is counted: where more may come, any number is thought to."""

Node = Any
"""One of the parser's, of which a rule is one too."""


class TooLarge(Exception):
    """To look through this grammar would take too long."""


class Budget:
    """The steps that are left."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooLarge


class Part(NamedTuple):
    """Whether a part of a text may be empty, and what may come first and last in it."""

    may_be_empty: bool
    first: int = 0
    last: int = 0
    behind_more: int = 0
    """What may be last with something of the same part before it."""


def bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


class Walk:
    """Goes through expressions and notes what may follow what."""

    def __init__(self, most_copies: int, budget: Budget) -> None:
        self._most_copies = most_copies
        self._budget = budget
        self.follow: list[int] = []

    def known(self, node: Node) -> Part | None:
        """Return what is said of the smallest things; None of those with parts."""
        raise NotImplementedError

    def part(self, node: Node) -> Part:
        self._budget.spend()
        if (known := self.known(node)) is not None:
            return known
        if isinstance(node, RepetitionNode):
            return self._repeated(node)
        parts = [self.part(child) for child in parts_of(node)]
        return either(parts) if isinstance(node, AlternativeNode) else self.joined(parts)

    def _repeated(self, node: RepetitionNode) -> Part:
        least, most = node.min_times, node.max_times
        is_endless = most is None or most > self._most_copies
        num_copies = max(1, min(least, self._most_copies)) if most is None or is_endless else most
        copies = [self.part(node.node) for _ in range(num_copies)]
        if is_endless:
            self.follows_itself(copies[-1], least)
        optional = [part._replace(may_be_empty=True) for part in copies[least:]]
        whole = self.joined([*copies[:least], *optional])
        return whole if least < 2 else whole._replace(behind_more=whole.last)

    def follows_itself(self, part: Part, least: int) -> None:
        """Note that a part may come again, when it has to come at least so often."""
        self._follows(part, part)

    def _follows(self, one: Part, other: Part) -> None:
        for thing in bits(one.last):
            self._budget.spend()
            self.follow[thing] |= other.first

    def joined(self, parts: Sequence[Part]) -> Part:
        whole = Part(True)
        for part in parts:
            self._follows(whole, part)
            behind_more = part.last if whole.first else part.behind_more
            whole = Part(
                whole.may_be_empty and part.may_be_empty,
                whole.first | (part.first if whole.may_be_empty else 0),
                part.last | (whole.last if part.may_be_empty else 0),
                behind_more | (whole.behind_more if part.may_be_empty else 0),
            )
        return whole


def either(parts: Sequence[Part]) -> Part:
    may_be_empty, *ways = zip(*parts, strict=True)
    return Part(any(may_be_empty), *(reduce(or_, way) for way in ways))


def parts_of(node: Node) -> list[Node]:
    target: Node = node.target if isinstance(node, RuleRefNode) else node
    return list(target.children())


class Automaton(Walk):
    """A lexeme, by the places of its characters."""

    def __init__(self, lexeme: Node, budget: Budget) -> None:
        super().__init__(MOST_COPIES, budget)
        self.bytes_at: list[int] = []
        """The first bytes of each: the lexer reads bytes, and decides at the first."""
        self.whole = self.part(lexeme)
        self._places: dict[int, int] = {}

    def known(self, node: Node) -> Part | None:
        if isinstance(node, RegexNode):
            chars = [first_bytes(node.rx)]
        elif isinstance(node, LiteralNode):
            chars = [1 << char.encode()[0] for char, _ in characters(node.value)]
        else:
            return None
        begin = len(self.follow)
        self._budget.spend(len(chars) * (1 + begin // 500))  # long numbers of bits are slow
        self.bytes_at += chars
        self.follow += [0] * len(chars)
        return self.joined([Part(False, 1 << n, 1 << n) for n in range(begin, len(self.follow))])

    def bytes_of(self, places: int) -> int:
        found = 0
        self._budget.spend(places.bit_count())
        for place in bits(places):
            found |= self.bytes_at[place]
        return found

    def places_of(self, some_bytes: int) -> int:
        """Return the places of characters that begin with one of these bytes."""
        if some_bytes not in self._places:
            self._budget.spend(len(self.bytes_at) // 8)
            fit = (1 << place for place, at in enumerate(self.bytes_at) if at & some_bytes)
            self._places[some_bytes] = reduce(or_, fit, 0)
        return self._places[some_bytes]

    def beside(self, other: Automaton) -> tuple[bool, int]:
        """Return whether a text fits both, and the bytes with which `other` goes on behind it."""
        is_shared, beyond = False, 0
        seen: set[tuple[int, int]] = set()
        ways = [(self.whole.first, other.whole.first)]
        while ways:
            mine, others = ways.pop()
            for place in bits(mine):
                for there in bits(others & other.places_of(self.bytes_at[place])):
                    self._budget.spend()
                    both = place, there
                    if both in seen:
                        continue
                    seen.add(both)
                    if self.whole.last >> place & 1:
                        is_shared |= bool(other.whole.last >> there & 1)
                        beyond |= other.bytes_of(other.follow[there])
                    ways.append((self.follow[place], other.follow[there]))
        return is_shared, beyond
