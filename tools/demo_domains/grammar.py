"""Phrasings, and the rule that keeps what the evaluation asks out of the training."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from random import Random
from typing import Literal

Split = Literal["train", "eval"]
Language = Literal["en", "zh"]

LANGUAGES: tuple[Language, ...] = ("en", "zh")
EVAL_SHARE = 8


@dataclass(frozen=True)
class Turn:
    """One question and its only right answer."""

    user: str
    answer: str


def is_held_out(text: str) -> bool:
    """Says whether `text` belongs to the evaluation; one in `EVAL_SHARE` does.

    Case, spaces and punctuation do not count, so no near copy of a held-out text is trained on.
    """
    bare = re.sub(r"[^\w<>+-]", "", text.lower())
    return hashlib.sha256(bare.encode()).digest()[0] % EVAL_SHARE == 0


def in_split(text: str, split: Split) -> bool:
    """Says whether `text` may be used in `split`."""
    return is_held_out(text) == (split == "eval")


def expand(pattern: str) -> list[str]:
    """Writes out every choice of a pattern: `"{hi|hello} there"` has two."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(pick) for pick in itertools.product(*choices)]


class Phrases:
    """All phrasings of one question, divided into those trained on and those held out."""

    def __init__(self, *patterns: str) -> None:
        # Each pattern keeps a list of its own, so that a pattern with a thousand
        # expansions does not drown one that has three.
        groups = [sorted(set(expand(pattern))) for pattern in patterns]
        self._groups: dict[Split, list[list[str]]] = {
            "train": _keep(groups, "train"),
            "eval": _keep(groups, "eval"),
        }

    def texts(self, split: Split) -> set[str]:
        """Returns every phrasing of `split`."""
        return {text for group in self._groups[split] for text in group}

    def pick(self, rng: Random, split: Split, **values: object) -> str:
        """Picks a phrasing, varies how it is typed, and fills `<name>` fields from `values`."""
        # A question with few phrasings may have none held out; it is then asked as trained.
        groups = self._groups[split] or self._groups["train"]
        text = vary(rng, rng.choice(rng.choice(groups)))
        for name, value in values.items():
            text = text.replace(f"<{name}>", str(value))
        return text


def _keep(groups: list[list[str]], split: Split) -> list[list[str]]:
    kept = [[text for text in group if in_split(text, split)] for group in groups]
    return [group for group in kept if group]


def vary(rng: Random, text: str) -> str:
    """Changes case and closing punctuation the way people do when they type in a hurry."""
    style = rng.random()
    if style < 0.35:
        text = text[:1].upper() + text[1:]
    elif style < 0.6:
        text = text.lower()
    if text.endswith(("?", "？")):
        ending = rng.random()
        if ending < 0.25:
            text = text[:-1]
        elif ending < 0.4:
            text = text[:-1] + ("?" if text.endswith("？") else " ?")
    elif text and text[-1].isalpha() and rng.random() < 0.25:
        text += rng.choice(["。", "！"] if ord(text[-1]) > 0x2E80 else [".", "!"])
    return text
