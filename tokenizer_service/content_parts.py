"""Which roles' texts a chat template reads only as lists of parts.

Such a template loops over `content` and prints nothing of one that is a string. Told by rendering
both: other templates tell strings and lists apart, or read strings alone.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from common.errors import InvalidRequest

Render = Callable[[list[dict[str, Any]]], Awaitable[str]]
LOOP = ("for", "in", "content")
WORD = re.compile(rf"\b(?:{'|'.join(LOOP)})\b")
SIGN = "millstone"
TALKS = {
    "user": ("user",),
    "system": ("system", "user"),
    "assistant": ("user", "assistant", "user"),
    "tool": ("user", "assistant", "tool"),
}
"""What is rendered to see how the text of a role is read."""


def may_read_parts(templates: Mapping[str, str]) -> bool:
    """Whether a template may loop over a content at all: most do not, and need no look."""
    return any(has_loop(tag) for source in templates.values() for tag in source.split("%"))


def has_loop(tag: str) -> bool:
    """Whether the words of a loop stand in this order; one pass, as one pattern of them is none."""
    words = iter(WORD.findall(tag))
    return all(word in words for word in LOOP)


async def roles_of_parts(render: Render) -> frozenset[str]:
    """Return the roles whose text is lost, or fails, as a string and is shown as a part.

    Raises what rendering raises where it does not come to an end.
    """
    found: set[str] = set()
    for role, talk in TALKS.items():
        if not await _shows(render, role, talk, found) and await _shows(
            render, role, talk, {*found, role}
        ):
            found.add(role)
    return frozenset(found)


async def _shows(render: Render, role: str, talk: Sequence[str], in_parts: Collection[str]) -> bool:
    texts = [(one, SIGN if one == role else "corn") for one in talk]
    messages = [
        {"role": one, "content": as_parts(text) if one in in_parts else text} for one, text in texts
    ]
    try:
        return SIGN in await render(messages)
    except InvalidRequest:  # the template refuses; all else says nothing of it
        return False


def as_parts(text: str) -> list[dict[str, str]]:
    """Return a text as the one part of a content."""
    return [{"type": "text", "text": text}]
