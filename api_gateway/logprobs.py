"""The text tier's logprob rows → OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protos.tokenizer_pb2 import TextLogprob, TextLogprobs

FLOOR = -9999.0  # JSON has no infinity


def value(entry: TextLogprob) -> float:
    return max(entry.logprob, FLOOR)


def entry_object(entry: TextLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": value(entry),
        "bytes": list(entry.token_bytes),
    }


def chat_logprobs(rows: Sequence[TextLogprobs]) -> dict[str, Any]:
    """Return the `logprobs` of a chat choice; a row's first entry is the chosen token."""
    content = [
        {
            **entry_object(row.entries[0]),
            "top_logprobs": [entry_object(entry) for entry in row.entries[1:]],
        }
        for row in rows
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(rows: Sequence[TextLogprobs], text_offset: int) -> dict[str, Any]:
    """Return the `logprobs` of a completion choice.

    Offsets count characters of the tokens' own texts, beginning at `text_offset`.
    """
    tokens = [row.entries[0].token for row in rows]
    offsets = []
    for token in tokens:
        offsets.append(text_offset)
        text_offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [value(row.entries[0]) for row in rows],
        "top_logprobs": [top(row) for row in rows],
        "text_offset": offsets,
    }


def top(row: TextLogprobs) -> dict[str, float]:
    """Return the alternatives by text, and the chosen token too when it is none of them."""
    found: dict[str, float] = {}
    for entry in (*row.entries[1:], row.entries[0]):
        found.setdefault(entry.token, value(entry))
    return found
