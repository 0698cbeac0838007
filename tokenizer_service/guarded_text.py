"""Keeps what users write from becoming a special token.

Before a template renders, each special token's text inside a string of the input is replaced by a
placeholder of characters that occur nowhere in the input; afterwards the rendered prompt is cut
at the template's own special tokens, and the placeholders become plain text again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from os.path import commonprefix
from typing import Any

from common.errors import InvalidRequest
from protos.json_fields import loads

DEEPEST = 64
"""Texts that begin each other, as runs of blanks do, are read one in another so far: parsers of
patterns recurse, and Python ends that at some hundreds."""
MARKS = range(0x20000, 0x2A6D6)
"""Rare ideographs: without case, and printable, so that neither filters nor repr change them."""
ESCAPED = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\+u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
"""A character of two halves as JSON escapes it, in a text that JSON may have escaped once more."""


def unused(characters: range, text: str) -> str:
    """Return one of `characters` that is not in `text`, nor as JSON escapes it.

    Raises InvalidRequest if all are.
    """
    present = set(text)
    present.update(json.loads(f'"\\u{high}\\u{low}"') for high, low in ESCAPED.findall(text))
    for char in map(chr, characters):
        if char not in present:
            return char
    raise InvalidRequest(
        f"the messages contain every character of U+{characters[0]:X} to U+{characters[-1]:X}: "
        "none is left to mark places with",
        param="messages",
    )


@lru_cache(maxsize=8)
def pattern_of(special_texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds special tokens, the longest of those that begin at one place, as group 1.

    A plain alternation tries every text at every `<`: seconds for a message of nothing else.
    """
    return re.compile(f"({one_of(sorted(special_texts)) if special_texts else '(?!)'})")


def one_of(texts: Sequence[str], depth: int = 0) -> str:
    """Return a pattern of sorted `texts` in which what they begin with alike is read once.

    Its alternatives begin with different characters, so that one at most is gone into; at DEEPEST
    they are the texts themselves.
    """
    if depth == DEEPEST:
        return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    begin = commonprefix([texts[0], texts[-1]])
    rests = [text[len(begin) :] for text in texts]
    parted = groupby(filter(None, rests), lambda rest: rest[0])
    ways = [one_of(list(alike), depth + 1) for _, alike in parted]
    if not ways:
        return re.escape(begin)
    return f"{re.escape(begin)}(?:{'|'.join(ways)}){'' if rests[0] else '?'}"


class GuardedText:
    """The placeholders of one prompt. `used` says whether any was needed."""

    def __init__(self, special_texts: tuple[str, ...], raw: Callable[[], str]) -> None:
        """`raw` returns all text of the input."""
        self._pattern = pattern_of(special_texts)
        self._raw = raw
        self._texts: list[str] = []

    @cached_property
    def _mark(self) -> str:
        """A character that the input does not contain."""
        return unused(MARKS, self._raw())

    @property
    def used(self) -> bool:
        return bool(self._texts)

    def hide(self, value: Any) -> Any:
        """Return a copy of a JSON value with every special token's text replaced."""
        if isinstance(value, str):
            return self._pattern.sub(self._placeholder, value)
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return value

    def read(self, text: str) -> Any:
        """Return the value of a hidden JSON text, hidden: escapes may have spelled a token."""
        if "\\" not in text:
            return loads(text)
        return self.hide(loads(self.show(text)))

    def _placeholder(self, match: re.Match[str]) -> str:
        self._texts.append(match[0])
        return f"{self._mark}{len(self._texts) - 1}{self._mark}"

    def split(self, rendered: str) -> list[str]:
        """Return text, special token, text, … with the hidden texts back in place."""
        parts = self._pattern.split(rendered)
        parts[::2] = [self.show(part) for part in parts[::2]]
        return parts

    def show(self, text: str) -> str:
        """Return `text` with the hidden texts back in place."""
        if not self._texts:
            return text
        mark = f"(?:{self._mark}|{re.escape(json.dumps(self._mark)[1:-1])})"  # tojson may escape
        return re.sub(f"{mark}([0-9]+){mark}", lambda match: self._texts[int(match[1])], text)
