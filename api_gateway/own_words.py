"""Errors of a chat request in the words of a route that makes one of something else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.errors import InvalidRequest

TOOL = re.compile(r"(?<![\w-])tools\[(\d+)\]")
QUOTED = re.compile(r"""((?<!\w)'[^']*'|"[^"]*")""")
Names = Sequence[tuple[str, str]]
"""Of fields, in the words of a chat request and in those of the client."""


@contextmanager
def own_words(names: Names, tools: Sequence[str]) -> Iterator[None]:
    """Let errors of a chat request name the client's own fields.

    `tools` are the places at which the client has those of the chat request.
    """
    try:
        yield
    except InvalidRequest as error:
        param = renamed(error.param or "", names, tools) or None
        message = renamed(error.message, names, tools)
        raise InvalidRequest(message, param=param, code=error.code) from error


def renamed(text: str, names: Names, tools: Sequence[str]) -> str:
    """Return `text` with fields in the client's words; what is quoted and parts of names stay."""
    parts = QUOTED.split(text)
    parts[::2] = [TOOL.sub(lambda found: tools[int(found[1])], part) for part in parts[::2]]
    for theirs, own in names:
        before = r"(?<![\w-])" if theirs[0] != "." else ""
        field = re.compile(rf"{before}{re.escape(theirs)}(?![\w-])")
        parts[::2] = [field.sub(own, part) for part in parts[::2]]
    return "".join(parts)
