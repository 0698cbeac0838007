"""The text tier's logprob rows → OpenAI's two shapes, and vLLM's for those of the prompt."""

from __future__ import annotations

import codecs
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
    return {"content": [row_object(row) for row in rows], "refusal": None}


def row_object(row: TextLogprobs) -> dict[str, Any]:
    alternatives = [entry_object(entry) for entry in row.entries[1:]]
    return {**entry_object(row.entries[0]), "top_logprobs": alternatives}


class TextOffsets:
    """Where tokens begin in the text that they make, in characters.

    A token that begins inside a character has that character's place: what is counted is what the
    bytes so far make, for the tokens' own texts show each part of a character as one of its own.
    """

    __slots__ = ("_decoder", "_num_chars")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def take(self, token_bytes: bytes) -> int:
        """Return where the next token begins."""
        if token_bytes and token_bytes[0] & 0xC0 != 0x80:  # an unfinished character stays so
            self._num_chars += len(self._decoder.decode(b"", final=True))
        at = self._num_chars
        self._num_chars += len(self._decoder.decode(token_bytes))
        return at

    def begin_at(self, num_chars: int) -> None:
        """Count on from there, in front of a token that begins a character."""
        self._decoder.reset()
        self._num_chars = num_chars


def placed(rows: Sequence[TextLogprobs], offsets: TextOffsets) -> list[tuple[int, dict[str, Any]]]:
    """Return what a chat shows of each row, behind the place of its token."""
    return [(offsets.take(text_bytes(row)), row_object(row)) for row in rows]


def num_newlines(rows: Sequence[TextLogprobs]) -> int:
    """Return how many newlines the text of the tokens begins with."""
    text = b"".join(map(text_bytes, rows))
    return len(text) - len(text.lstrip(b"\n"))


def text_bytes(row: TextLogprobs) -> bytes:
    """Return what the token is in the text."""
    return b"" if row.is_hidden else row.entries[0].token_bytes


def name_of(entry: TextLogprob) -> str:
    """Return a token as completions tell it: its text, of a part of a character OpenAI's form.

    All parts of characters have one text, U+FFFD, and would be one entry of `top_logprobs`.
    """
    if "\ufffd" in entry.token and entry.token.encode() != entry.token_bytes:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
    return entry.token


def completion_logprobs(
    rows: Sequence[TextLogprobs], offsets: TextOffsets, most: int | None = None
) -> dict[str, list[Any]]:
    """Return the `logprobs` of a completion choice, at most so many alternatives a token."""
    return {
        "tokens": [name_of(row.entries[0]) for row in rows],
        "token_logprobs": [value(row.entries[0]) for row in rows],
        "top_logprobs": [top(row, most) for row in rows],
        "text_offset": [offsets.take(text_bytes(row)) for row in rows],
    }


def echo_logprobs(echo: str, prompt: Sequence[TextLogprobs], most: int) -> dict[str, list[Any]]:
    """Return the `logprobs` of a prompt that is repeated; the first token has no logprob.

    A first token that the tokenizer has put there (BOS) is no part of the text. The tokens of a
    prompt may say it in other characters (in NFC); those of the completion begin at its end.
    `prompt_logprobs` beside it may have asked for more than `most` alternatives a token.
    """
    offsets = TextOffsets()
    told = [row for row in prompt if row.index]
    head = next((row.entries[0] for row in prompt if not row.index), None)
    first, raw = (echo, echo.encode()) if head is None else (name_of(head), head.token_bytes)
    if echo.encode().startswith(raw):
        offsets.take(raw)
    shown = completion_logprobs(told, offsets, most)
    begin = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
    return {name: [of_first, *shown[name]] for name, of_first in begin.items()}


def prompt_logprobs(rows: Sequence[TextLogprobs], most: int) -> list[dict[str, Any] | None]:
    """Return one object a prompt token, by token id; the first token has none.

    An echo beside it may have asked for more than `most` alternatives a token.
    """
    return [None, *(map_of(row, most) for row in rows if row.index)]


def map_of(row: TextLogprobs, most: int) -> dict[str, Any]:
    """Return the entries by id with their ranks; the prompt's own token may have none."""
    entries = row.entries[: most + 1]
    ranks = {entry.token_id: rank for rank, entry in enumerate(entries[1:], 1)}
    return {
        str(entry.token_id): {
            "logprob": value(entry),
            "rank": ranks.get(entry.token_id),
            "decoded_token": entry.token,
        }
        for entry in entries
    }


def top(row: TextLogprobs, most: int | None) -> dict[str, float]:
    """Return the alternatives by text, and the chosen token too when it is none of them."""
    found: dict[str, float] = {}
    for entry in (*row.entries[1:][:most], row.entries[0]):
        found.setdefault(name_of(entry), value(entry))
    return found
