"""Tokens → visible text of one choice: stop ids, min_tokens, resuming."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_tokenizer import tiny_library
from tests.tokenizer_service.test_stop_strings import STOPS, first_match
from tokenizer_service.stop_strings import StopStrings
from tokenizer_service.text_stream import TextStream
from tokenizer_service.tokenizer import Tokenizer

TINY = Tokenizer(tiny_library())
EOS = TINY.id_of("<|im_end|>") or 0


def stream(
    stops: tuple[str, ...] = (), include: bool = False, keep: bool = False, **rest: int
) -> TextStream:
    return TextStream(TINY.detokenizer(keep), StopStrings(stops, include), frozenset({EOS}), **rest)


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_the_stop_id_counts_but_gives_no_text() -> None:
    text = stream(keep=True)
    assert text.push([*ids("ab"), EOS]) == "ab" and text.num_tokens == 3


def test_the_stop_id_is_shown_when_asked_for() -> None:
    text = stream(keep=True, include=True)
    assert text.push([*ids("ab"), EOS]) == "ab<|im_end|>"


def test_tokens_after_a_match_are_not_taken() -> None:
    text = stream(("b",))
    assert text.push(ids("abcd")) == "a"
    assert (text.matched, text.num_tokens, text.flush()) == ("b", 2, "")


def test_stop_strings_before_min_tokens_do_not_end() -> None:
    text = stream(("b",), min_tokens=3)
    assert text.push(ids("abbab")) == "abba"
    assert (text.matched, text.num_tokens) == ("b", 5)


def test_flush_gives_what_was_held_and_the_broken_character() -> None:
    text = stream(("abc",))
    assert text.push(ids("xab")) == "x" and text.held
    assert text.flush() == "ab" and text.text_bytes == 3
    broken = stream()
    assert broken.push([0xE4, 0xBD]) == "" and broken.flush() == "\ufffd"


@pytest.mark.parametrize("include", [False, True])
@given(
    raw=st.lists(st.sampled_from([*"ab<é😀".encode(), EOS - 1]), max_size=30),
    stops=STOPS,
    chunks=st.lists(st.integers(1, 4), max_size=30),
)
def test_streamed_equals_whole(
    include: bool, raw: list[int], stops: list[str], chunks: list[int]
) -> None:
    """Any bytes, any stop strings, any number of tokens at a time: the same text and end."""
    whole = TINY.detokenizer(False)
    settled = "".join(map(whole.step, raw))
    match = first_match(settled, stops)
    wanted = settled + whole.flush()
    if match is not None:
        wanted = settled[: match[0] if include else match[0] - len(match[1])]
    streamed = stream(tuple(stops), include)
    text, at = "", 0
    for chunk in [*chunks, len(raw)]:
        if streamed.matched is None and raw[at : at + chunk]:
            text += streamed.push(raw[at : at + chunk])
            assert wanted.startswith(text)
            at += chunk
    assert text + streamed.flush() == wanted
    assert streamed.matched == (match[1] if match is not None else None)


@given(st.text(max_size=20), st.integers(0, 20), st.integers(1, 7))
def test_a_resumed_stream_repeats_nothing(text: str, cut: int, chunk: int) -> None:
    """Whatever was delivered before, both parts together are the whole text."""
    raw = ids(text)
    before = stream(("zq",))
    delivered = before.push(raw[:cut]) if raw[:cut] else ""
    after = stream(("zq",), resume_bytes=before.text_bytes)
    assert after.text_bytes == len(delivered.encode())
    for at in range(0, len(raw), chunk):
        delivered += after.push(raw[at : at + chunk])
    assert delivered + after.flush() == text
    assert after.text_bytes == len(text.encode())


@pytest.mark.parametrize(
    ("min_tokens", "shown"), [(0, "f"), (3, "f"), (4, "foobar"), (5, "foobar")]
)
def test_a_stop_string_counts_where_its_end_lies_behind_min_tokens(
    min_tokens: int, shown: str
) -> None:
    """Wherever it begins: the fourth token ends "oob"."""
    text = stream(("oob",), min_tokens=min_tokens)
    assert text.push(ids("foobar")) + text.flush() == shown
    assert (text.matched is not None) == (shown == "f")
