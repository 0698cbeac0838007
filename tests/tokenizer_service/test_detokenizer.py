"""Streams of tokens become text at the earliest sure moment, and never sooner."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE

from tests.support.tiny_tokenizer import tiny_library
from tests.tokenizer_service.conftest import reference_cases, reference_tokenizer
from tokenizer_service.detokenizer import (
    Detokenizer,
    NoText,
    TableDetokenizer,
    WindowDetokenizer,
    build_table,
)
from tokenizer_service.tokenizer import Tokenizer

LIBRARY = tiny_library()
TINY = Tokenizer(LIBRARY)
TOKEN_IDS = st.lists(st.integers(0, TINY.size - 1), max_size=40)


def decode_all(detokenizer: Detokenizer, ids: list[int]) -> tuple[list[str], str]:
    return [detokenizer.step(token_id) for token_id in ids], detokenizer.flush()


def test_stream_cases(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "tokenizer/stream_cases.json"):
        tokenizer = reference_tokenizer(reference_data / "models" / case["model"])
        detokenizer = tokenizer.detokenizer(keep_special=not case["skip_special_tokens"])
        deltas, rest = decode_all(detokenizer, case["ids"])
        assert (deltas, rest) == (case["deltas"], case["flush"]), case["kind"]


def test_encode_cases_decode(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "tokenizer/encode_cases.json"):
        tokenizer = reference_tokenizer(reference_data / "models" / case["model"])
        for keep, text in ((True, case["decoded"]), (False, case["decoded_skip_special"])):
            deltas, rest = decode_all(tokenizer.detokenizer(keep), case["ids"])
            assert "".join(deltas) + rest == text


@given(TOKEN_IDS, st.booleans())
def test_any_tokens_decode_as_the_library_does(ids: list[int], keep: bool) -> None:
    deltas, rest = decode_all(TINY.detokenizer(keep), ids)
    assert "".join(deltas) + rest == LIBRARY.decode(ids, skip_special_tokens=not keep)


@given(st.text(max_size=30))
def test_valid_text_never_shows_a_replacement_early(text: str) -> None:
    """One byte a token: each character appears exactly with its last byte."""
    detokenizer = TINY.detokenizer(keep_special=True)
    for char in text:
        *first, last = char.encode()
        assert [detokenizer.step(byte) for byte in first] == [""] * len(first)
        assert detokenizer.step(last) == char
    assert detokenizer.flush() == ""


@given(st.binary(max_size=30))
def test_any_bytes_end_as_python_decodes_them(raw: bytes) -> None:
    deltas, rest = decode_all(TINY.detokenizer(keep_special=True), list(raw))
    assert "".join(deltas) + rest == raw.decode("utf-8", "replace")


@given(TOKEN_IDS)
def test_windows_agree_with_the_table(ids: list[int]) -> None:
    window = WindowDetokenizer(lambda part: LIBRARY.decode(part, skip_special_tokens=True))
    deltas, rest = decode_all(window, ids)
    assert "".join(deltas) + rest == LIBRARY.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("special_at", [1, 2])
def test_a_skipped_special_token_inside_a_character_is_nothing(special_at: int) -> None:
    ids = list("你".encode())
    ids.insert(special_at, TINY.id_of("<|im_end|>") or 0)
    deltas, rest = decode_all(TINY.detokenizer(keep_special=False), ids)
    assert "".join(deltas) + rest == "你" == deltas[-1]


def test_ids_beyond_the_tokenizer_give_no_text() -> None:
    assert decode_all(TINY.detokenizer(False), [TINY.size, TINY.size + 100]) == (["", ""], "")


def metaspace_library() -> Library:
    vocabulary = {"▁Hello": 0, "▁world": 1, "!": 2, "<0xE4>": 3, "<0xBD>": 4, "<0xA0>": 5}
    library = Library(BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return library


def test_other_decoders_fall_back_to_windows() -> None:
    library = metaspace_library()
    assert build_table(library, frozenset()) is None
    detokenizer = Tokenizer(library).detokenizer(keep_special=False)
    assert not isinstance(detokenizer, TableDetokenizer)
    deltas, rest = decode_all(detokenizer, [0, 1, 3, 4, 5, 2])
    assert deltas == ["Hello", " world", "", "", "你", "!"] and rest == ""


def test_no_tokenizer_gives_no_text() -> None:
    assert decode_all(NoText(), [1, 2]) == (["", ""], "")
