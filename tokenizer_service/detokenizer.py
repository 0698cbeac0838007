"""Token ids → text, one token at a time, each character at the earliest sure moment.

Two ways: a table of ready bytes and strings, for byte-level decoders, checked against the library
at load; and windows of the library's own decode for all others. Knows no stop strings.
"""

from __future__ import annotations

import random
from codecs import utf_8_decode
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer

MAX_UNSETTLED_TOKENS = 64
SAMPLES = 64
SAMPLE_TOKENS = 48


class Detokenizer(Protocol):
    """One stream of tokens; `TableDetokenizer`, `WindowDetokenizer` and `NoText` stand."""

    def step(self, token_id: int) -> str:
        """Return the characters that this token settles."""

    def flush(self) -> str:
        """Return what is left when the stream ends inside a character."""


class TokenTable:
    """Bytes and text of every id. `skipping` is the same with special tokens empty."""

    def __init__(self, pieces: list[bytes], special_ids: frozenset[int]) -> None:
        self.pieces = pieces
        self.strings = [whole_text(piece) for piece in pieces]
        self.skipping_pieces = [
            b"" if i in special_ids else piece for i, piece in enumerate(pieces)
        ]
        self.skipping_strings = [
            "" if i in special_ids else text for i, text in enumerate(self.strings)
        ]

    def detokenizer(self, keep_special: bool) -> TableDetokenizer:
        if keep_special:
            return TableDetokenizer(self.strings, self.pieces)
        return TableDetokenizer(self.skipping_strings, self.skipping_pieces)


class TableDetokenizer:
    """Looks strings up; only tokens that cut a character touch bytes."""

    __slots__ = ("_pieces", "_strings", "_tail")

    def __init__(self, strings: Sequence[str | None], pieces: Sequence[bytes]) -> None:
        self._strings = strings
        self._pieces = pieces
        self._tail = b""

    def step(self, token_id: int) -> str:
        if token_id >= len(self._strings):
            return ""  # the model's vocabulary is padded beyond the tokenizer's
        if not self._tail:
            text = self._strings[token_id]
            if text is not None:
                return text
        return self._join(self._pieces[token_id])

    def _join(self, piece: bytes) -> str:
        waiting = self._tail + piece
        text, used = utf_8_decode(waiting, "replace", False)
        tail = waiting[used:]
        if tail[:1] == b"\xed" and tail[1:2] >= b"\xa0":  # half a surrogate pair: never a character
            text, tail = text + tail.decode("utf-8", "replace"), b""
        self._tail = tail
        return text

    def flush(self) -> str:
        tail, self._tail = self._tail, b""
        return tail.decode("utf-8", "replace")


class WindowDetokenizer:
    """Decodes the last settled tokens with and without the new ones; the difference is new text."""

    __slots__ = ("_decode", "_ids", "_known", "_sent", "_settled", "_shown", "_whole")

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        shown: Container[int],
        before: Sequence[int] = (),
        whole: Sequence[int] = (),
    ) -> None:
        """`shown`: ids that have a text at all. `before`: settled tokens that stand in front.

        `whole`: a token with a text of its own, which no bytes behind it can change.
        """
        self._decode = decode
        self._shown = shown
        self._ids = list(before)
        self._whole = list(whole)
        self._settle()

    def _settle(self) -> None:
        """Let all of the window be context."""
        self._known = len(self._ids)
        self._settled = self._decode(self._ids) if self._ids else ""
        self._sent = 0
        """Characters behind the context that were returned."""

    def _text(self) -> str:
        """Return the text behind the context.

        The library makes each byte of a run U+FFFD that is not all UTF-8, those of a settled
        character too: then the new ones are decoded without it.
        """
        text = self._decode(self._ids)
        if text.startswith(self._settled):
            return text[len(self._settled) :]
        text = self._decode(self._whole + self._ids[self._known :])
        return text[len(self._decode(self._whole)) :]

    def step(self, token_id: int) -> str:
        if token_id not in self._shown:
            return ""  # alone in the window it would make the next token the first of a text
        self._ids.append(token_id)
        text = self._text()
        sure = len(text.rstrip("\ufffd"))
        if sure == len(text) or len(self._ids) - self._known > MAX_UNSETTLED_TOKENS:
            new = text[self._sent :]
            del self._ids[: self._known]
            self._settle()
            return new
        new = text[self._sent : sure]
        self._sent = max(self._sent, sure)
        return new

    def flush(self) -> str:
        return self._text()[self._sent :]


class NoText:
    """Stands where the model folder has no tokenizer: ids pass, text is empty."""

    def step(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def whole_text(piece: bytes) -> str | None:
    """Return `piece` as text, or None when it cuts a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


def byte_alphabet() -> dict[str, int]:
    """Return the byte behind each character of byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    table = {chr(b): b for b in printable}
    return table | {chr(256 + i): b for i, b in enumerate(others)}


def build_table(
    library: Tokenizer, vocabulary: Mapping[str, int], special_ids: frozenset[int]
) -> TokenTable | None:
    """Return the table of a byte-level tokenizer, or None when the library decodes otherwise.

    `vocabulary` is the library's, added tokens included: to ask for it takes long.
    """
    alphabet = byte_alphabet()
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        try:
            pieces[token_id] = bytes([alphabet[char] for char in token])
        except KeyError:
            pieces[token_id] = token.encode()  # an added token outside the alphabet
    table = TokenTable(pieces, special_ids)
    return table if agrees(library, table, sorted(set(vocabulary.values()))) else None


def agrees(library: Tokenizer, table: TokenTable, known: list[int]) -> bool:
    """Compare the table with the library, on every known id alone and on random sequences."""
    generator = random.Random(0)
    alone = [[token_id] for token_id in known]
    mixed = [generator.choices(known, k=SAMPLE_TOKENS) for _ in range(SAMPLES)] if known else []
    return (
        library.decode_batch(alone, skip_special_tokens=False) == joined(alone, table.pieces)
        and library.decode_batch(mixed, skip_special_tokens=False) == joined(mixed, table.pieces)
        and library.decode_batch(mixed, skip_special_tokens=True)
        == joined(mixed, table.skipping_pieces)
    )


def joined(samples: list[list[int]], pieces: Sequence[bytes]) -> list[str]:
    """Return the text of each sample as the table has it."""
    return [b"".join([pieces[i] for i in ids]).decode("utf-8", "replace") for ids in samples]
