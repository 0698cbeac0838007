"""Streams of tokens become text at the earliest sure moment, and never sooner."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE

from protos.columns import pack
from protos.tokenizer_pb2 import TextRequest
from tests.support.tiny_tokenizer import tiny_library
from tokenizer_service.detokenizer import (
    MAX_UNSETTLED_TOKENS,
    Detokenizer,
    NoText,
    TableDetokenizer,
    WindowDetokenizer,
    build_table,
)
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.stop_strings import StopStrings
from tokenizer_service.text_model import load_text_model
from tokenizer_service.tokenizer import Tokenizer

LIBRARY = tiny_library()
TINY = Tokenizer(LIBRARY)
TOKEN_IDS = st.lists(st.integers(0, TINY.size - 1), max_size=40)


def decode_all(detokenizer: Detokenizer, ids: list[int]) -> tuple[list[str], str]:
    return [detokenizer.step(token_id) for token_id in ids], detokenizer.flush()


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


def test_half_a_surrogate_pair_is_shown_at_once() -> None:
    """No byte behind it makes it a character, though Python's decoder waits for the third one."""
    deltas, rest = decode_all(TINY.detokenizer(keep_special=True), list(b"\xed\xa0"))
    assert (deltas, rest) == (["", "\ufffd\ufffd"], "")


@given(TOKEN_IDS)
def test_windows_agree_with_the_table(ids: list[int]) -> None:
    shown = set(range(TINY.size)) - TINY.special_ids
    window = WindowDetokenizer(LIBRARY.decode, shown)
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
    assert build_table(library, library.get_vocab(), frozenset()) is None
    detokenizer = Tokenizer(library).detokenizer(keep_special=False)
    assert not isinstance(detokenizer, TableDetokenizer)
    deltas, rest = decode_all(detokenizer, [0, 1, 3, 4, 5, 2])
    assert deltas == ["Hello", " world", "", "", "你", "!"] and rest == ""


SPACED = metaspace_library()
SPACED.add_special_tokens(["</s>"])


@pytest.mark.parametrize("ids", [[0, 6, 1], [6, 0, 6, 6, 1], [0, 99, 1], [0, 6, 3, 6, 4, 5, 6, 1]])
def test_a_skipped_token_takes_no_blank_away(ids: list[int]) -> None:
    """Each text's first blank is stripped by the decoder; that of a window must not be."""
    deltas, rest = decode_all(Tokenizer(SPACED).detokenizer(keep_special=False), ids)
    known = [token_id for token_id in ids if token_id < 7]
    assert "".join(deltas) + rest == SPACED.decode(known)


@pytest.mark.parametrize("before", [[0], [2], [0, 3], [0, 6], [0, 99]])
def test_what_follows_a_prompt_keeps_its_blank(before: list[int]) -> None:
    deltas, _ = decode_all(Tokenizer(SPACED).detokenizer(False, before), [1, 3, 4, 5])
    assert deltas == [" world", "", "", "你"]


async def test_an_answer_is_read_behind_its_prompt(tmp_path: Path) -> None:
    SPACED.save(str(tmp_path / "tokenizer.json"))
    model = load_text_model(tmp_path, "", TokenizerMetrics(CollectorRegistry()))
    stream = model.stream(TextRequest(), StopStrings(()), pack([0]), 0)
    assert stream.push([1, 2]) == " world!"
    await model.close()


def test_what_follows_no_text_is_the_begin_of_one() -> None:
    assert decode_all(Tokenizer(SPACED).detokenizer(False, [6]), [1]) == (["world"], "")


@pytest.mark.parametrize("before", [[3], [6, 3, 4, 5]])
def test_a_prompt_that_ends_in_bytes_alone_is_text(before: list[int]) -> None:
    assert decode_all(Tokenizer(SPACED).detokenizer(False, before), [1]) == ([" world"], "")


@pytest.mark.parametrize("ids", [[3, 4, 5, 3], [3, 4, 5, 3, 2], [2, 3], [0, 3, 4, 5, 3, 4, 1]])
def test_a_cut_character_leaves_the_settled_ones_alone(ids: list[int]) -> None:
    """The library makes a whole run of bytes U+FFFD, also those of a character before."""
    deltas, rest = decode_all(Tokenizer(SPACED).detokenizer(keep_special=False), ids)
    pieces = [b"Hello", b" world", b"!", b"\xe4", b"\xbd", b"\xa0"]
    whole = b"".join(pieces[token_id] for token_id in ids).decode(errors="replace")
    assert ("".join(deltas) + rest).replace("\ufffd\ufffd", "\ufffd") == whole


def test_bytes_that_never_make_a_character_are_shown_in_the_end() -> None:
    """Else each token would have all before it decoded again, and nothing be shown."""
    detokenizer = Tokenizer(SPACED).detokenizer(keep_special=False)
    deltas, _ = decode_all(detokenizer, [3] * 3 * MAX_UNSETTLED_TOKENS)
    assert "".join(deltas).count("\ufffd") > MAX_UNSETTLED_TOKENS


def test_pieces_of_other_decoders_are_exact_bytes() -> None:
    tokenizer = Tokenizer(SPACED)
    pieces = [b" Hello", b" world", b"!", b"\xe4", b"\xbd", b"\xa0", b"</s>"]
    assert [tokenizer.piece(token_id) for token_id in range(8)] == [*pieces, b""]
    assert tokenizer.pieces() == pieces


def test_no_tokenizer_gives_no_text() -> None:
    assert decode_all(NoText(), [1, 2]) == (["", ""], "")
