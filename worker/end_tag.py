"""The tag behind which a grammar acts, read as text: tokens may end it together with what follows.

Of Qwen2.5's vocabulary `</think>` and newlines end with the token `>\\n\\n`, and `.</` begins it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from worker.kernels.checks import Ints

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Ending = tuple[int, tuple[int, ...]]
"""A token, and those of the text that it holds behind the tag; white space there is nobody's."""


class EndTag:
    """One tag in one vocabulary. Knows no state: it is asked about the ids of an output so far."""

    def __init__(self, tokenizer: LLTokenizer, token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._text = tokenizer.decode_bytes(list(token_ids)).lstrip()  # some put a blank before it

    def begun(self, output_ids: Ints) -> list[int] | None:
        """Return the tokens behind the tag that the last id holds; None where the tag is open."""
        _, found, rest = self._tail(output_ids).rpartition(self._text)
        return self._tokenizer.tokenize_bytes(rest.lstrip()) if found else None

    def endings(self, output_ids: Ints) -> list[Ending]:
        """Return the tokens that would end a tag which has begun, and an answer begin."""
        said, tag = self._tail(output_ids), self._text
        begun = next((n for n in range(len(tag) - 1, 0, -1) if said.endswith(tag[:n])), 0)
        return _beyond(self._tokenizer, tag[begun:]) if begun else []

    def _tail(self, output_ids: Ints) -> bytes:
        """Return the text of the last ids, at least as much as that of the tag."""
        last = output_ids[-len(self._text) :].tolist()
        return self._tokenizer.decode_bytes([i for i in last if i < self._tokenizer.vocab_size])


@lru_cache(32)
def _beyond(tokenizer: LLTokenizer, begin: bytes) -> list[Ending]:
    """Return the tokens that begin so and go on."""
    from llguidance import LLMatcher

    pattern = re.escape(begin.decode(errors="replace")) + "(?s:.*)"
    mask = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(pattern)).compute_bitmask()
    ids = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()
    rests = ((i, tokenizer.decode_bytes([i])[len(begin) :].lstrip()) for i in ids)
    return [(i, tuple(tokenizer.tokenize_bytes(rest))) for i, rest in rests if rest]
