"""Errors of a chat request in the words of a route that makes one of something else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.errors import InvalidRequest

QUOTED = re.compile(r"""((?<!\w)'[^']*'|"[^"]*")""")
Names = Sequence[tuple[str, str]]
"""Of fields, in the words of a chat request and in those of the client."""


@contextmanager
def own_words(names: Names) -> Iterator[None]:
    """Let errors of a chat request name the client's own fields."""
    try:
        yield
    except InvalidRequest as error:
        param = renamed(error.param or "", names) or None
        raise InvalidRequest(renamed(error.message, names), param=param, code=error.code) from error


def renamed(text: str, names: Names) -> str:
    """Return `text` with fields in the client's words; what is quoted and parts of names stay."""
    parts = QUOTED.split(text)
    for theirs, own in names:
        before = r"(?<![\w-])" if theirs[0] != "." else ""
        field = re.compile(rf"{before}{re.escape(theirs)}(?![\w-])")
        parts[::2] = [field.sub(own, part) for part in parts[::2]]
    return "".join(parts)
