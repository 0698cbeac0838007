"""The text tier's logprob rows → OpenAI's two shapes, and vLLM's for those of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
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
    return {
        "tokens": tokens,
        "token_logprobs": [value(row.entries[0]) for row in rows],
        "top_logprobs": [top(row) for row in rows],
        "text_offset": offsets_of(tokens, text_offset),
    }


def echo_logprobs(
    echo: str, prompt: Sequence[TextLogprobs], rows: Sequence[TextLogprobs]
) -> dict[str, Any]:
    """Return the `logprobs` of a prompt and its completion; the first token has no logprob."""
    told = [row for row in prompt if row.index]
    first = next((row.entries[0].token for row in prompt if not row.index), echo)
    shown = completion_logprobs([*told, *rows], len(first))
    return {
        "tokens": [first, *shown["tokens"]],
        "token_logprobs": [None, *shown["token_logprobs"]],
        "top_logprobs": [None, *shown["top_logprobs"]],
        "text_offset": [0, *shown["text_offset"]],
    }


def prompt_logprobs(rows: Sequence[TextLogprobs]) -> list[dict[str, Any] | None]:
    """Return one object a prompt token, by token id; the first token has none."""
    return [None, *(map_of(row) for row in rows if row.index)]


def map_of(row: TextLogprobs) -> dict[str, Any]:
    """Return the entries by id with their ranks; the prompt's own token may have none."""
    ranks = {entry.token_id: rank for rank, entry in enumerate(row.entries[1:], 1)}
    return {
        str(entry.token_id): {
            "logprob": value(entry),
            "rank": ranks.get(entry.token_id),
            "decoded_token": entry.token,
        }
        for entry in row.entries
    }


def offsets_of(tokens: Sequence[str], first: int) -> list[int]:
    """Return where each token begins in a text of which they are the rest from `first` on."""
    return list(accumulate(map(len, tokens), initial=first))[:-1]


def top(row: TextLogprobs) -> dict[str, float]:
    """Return the alternatives by text, and the chosen token too when it is none of them."""
    found: dict[str, float] = {}
    for entry in (*row.entries[1:], row.entries[0]):
        found.setdefault(entry.token, value(entry))
    return found
