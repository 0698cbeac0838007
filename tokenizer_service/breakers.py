"""A breaker string of DRY → every way it may stand in tokens, as llama.cpp resolves it.

A token that contains it, or one whose end begins it with the rest encoded after it
(`get_overlapping_token_sequences`). An index over the vocabulary makes a search of it unnecessary.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache

from tokenizer_service.tokenizer import Tokenizer

MAX_TAIL_TOKENS = 20
"""Tokens after the first: llama.cpp's bound."""
CACHED = 64
END = b"\xff"
"""Above every byte of UTF-8."""


class Breakers:
    """Resolves breakers in one vocabulary; blocks, belongs in a thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        pieces = tokenizer.pieces()
        self._text = b"".join(pieces)
        self._starts: list[int] = []
        at = 0
        for piece in pieces:
            self._starts.append(at)
            at += len(piece)
        self._starts.append(at)
        self._backwards = sorted((piece[::-1], i) for i, piece in enumerate(pieces))
        self.columns = lru_cache(CACHED)(self._columns)

    def _columns(self, breaker: str) -> frozenset[bytes]:
        """Return the columns of every way `breaker` may stand in tokens."""
        whole = {one_id(token_id) for token_id in self._containing(breaker.encode())}
        found = set(whole)
        for at in range(1, len(breaker)):
            heads = [one_id(i) for i in self._ending_with(breaker[:at].encode())]
            if heads:
                tail = self._tokenizer.encode(breaker[at:], add_special_tokens=False)
                found.update(h + tail[: 4 * MAX_TAIL_TOKENS] for h in heads if h not in whole)
        return frozenset(found)

    def _containing(self, wanted: bytes) -> Iterator[int]:
        at = self._text.find(wanted)
        while at >= 0:
            token_id = bisect_right(self._starts, at) - 1
            if at + len(wanted) <= self._starts[token_id + 1]:
                yield token_id
            at = self._text.find(wanted, at + 1)

    def _ending_with(self, head: bytes) -> Iterator[int]:
        begin = bisect_left(self._backwards, (head[::-1], 0))
        end = bisect_left(self._backwards, (head[::-1] + END, 0))
        for _, token_id in self._backwards[begin:end]:
            yield token_id


def one_id(token_id: int) -> bytes:
    return token_id.to_bytes(4, "little")
