"""Thoughts and answer: the same two texts however tags, tokens and steps are cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from protos.columns import unpack
from tokenizer_service import reasoning
from tokenizer_service.reasoning import (
    ANSWER,
    REASONING,
    Place,
    Segment,
    SplitStream,
    ThoughtSplit,
    place_after,
)
from tokenizer_service.stop_strings import StopStrings
from tokenizer_service.text_stream import TextStream
from tokenizer_service.tokenizer import Tokenizer


def split(pieces: Sequence[str], place: Place = Place.START) -> tuple[str, str]:
    """Return thoughts and answer of a text in pieces."""
    splitter, texts = ThoughtSplit(place), {ANSWER: "", REASONING: ""}
    for channel, text in [part for piece in pieces for part in splitter.feed(piece)]:
        assert text
        texts[channel] += text
    for channel, text in splitter.flush():
        texts[channel] += text
    return texts[REASONING], texts[ANSWER]


@pytest.mark.parametrize(
    ("text", "place", "thoughts", "answer"),
    [
        ("<think>\nwhy\n</think>\n\nso", Place.START, "why", "so"),
        ("\n <think>why</think>so", Place.START, "why", "so"),
        ("why\n</think>\n\nso", Place.PROMPTED, "why", "so"),
        ("<think>\nwhy\n</think>\n\nso", Place.PROMPTED, "why", "so"),
        ("<thin", Place.PROMPTED, "<thin", ""),
        ("<b>why</think>so", Place.PROMPTED, "<b>why", "so"),
        (" ever\n\non\n</think>", Place.THOUGHTS, " ever\n\non", ""),
        ("\n\nso <think>", Place.CLOSED, "", "so <think>"),
        ("\nso", Place.ANSWER, "", "\nso"),
        ("no <think>a</think>", Place.START, "", "no <think>a</think>"),
        ("  no", Place.START, "", "  no"),
        ("<thin", Place.START, "", "<thin"),
        ("<think>\n\n</think>\n\nso\n", Place.START, "", "so\n"),
        ("<think>cut off\n\n", Place.START, "cut off\n\n", ""),
        ("<think>cut </thin", Place.START, "cut </thin", ""),
        ("<think>a</think>b</think>c", Place.START, "a", "b</think>c"),
        ("<think>a<think>b</think>c", Place.START, "a<think>b", "c"),
        ("<think>a</<//think</think>b", Place.START, "a</<//think", "b"),
        ("\n \n\n<think>\n\na\n\n \n\n</think>\n\nb", Place.START, "a\n\n ", "b"),
        ("\n\n \n", Place.PROMPTED, "\n\n \n", ""),
    ],
)
def test_texts_part_at_the_tags_however_they_are_cut(
    text: str, place: Place, thoughts: str, answer: str
) -> None:
    assert split([text], place) == (thoughts, answer)
    assert split(list(text), place) == (thoughts, answer)
    for at in range(1, len(text)):
        assert split([text[:at], text[at:]], place) == (thoughts, answer)


def test_a_run_of_newlines_in_thoughts_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each token of a model that writes them without end costs as much as all before."""
    read: list[str] = []
    settled = reasoning.settled_chars
    monkeypatch.setattr(reasoning, "settled_chars", lambda text: read.append(text) or settled(text))
    newlines = ["\n"] * 99
    assert split(["a\n", *newlines, "b", *newlines], Place.THOUGHTS)[0] == (
        "a" + "\n" * 100 + "b" + "\n" * 99
    )
    assert read == ["a\n"]


@pytest.mark.parametrize(
    ("prompt", "continued", "place"),
    [
        ("<|im_start|>assistant\n", "", Place.START),
        ("<｜Assistant｜><think>\n", "", Place.PROMPTED),
        ("assistant\n<think>\n\n</think>\n\n", "", Place.CLOSED),
        ("say <think>", "<think>\nwell", Place.THOUGHTS),
        ("<think>", "<think>well</think>so", Place.ANSWER),
        ("<think>", "so", Place.ANSWER),
    ],
)
def test_the_prompt_says_where_the_text_begins(prompt: str, continued: str, place: Place) -> None:
    assert place_after(prompt, continued) is place


ALPHABET = ["<think>", "</think>", "<", "/", "think", ">", "\n", "\n\n", "why", " so", "END", "é"]


def streamed(
    tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int], place: Place, stops: StopStrings
) -> tuple[list[Segment], int]:
    """Return what a stream says of `ids` in steps that end at `cuts`, and its thoughts' tokens."""
    text = TextStream(tokenizer.detokenizer(False), stops, frozenset())
    stream, segments = SplitStream(text, place), list[Segment]()
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        if text.matched is None:
            segments += stream.push(ids[begin:end])
    if text.matched is None:
        segments += stream.flush()
    offset = 0
    for segment in segments:
        assert segment.text_offset == offset
        offset += len(segment.text.encode())
    assert stream.text_bytes == offset
    return segments, stream.num_reasoning_tokens


def told(segments: Sequence[Segment], channel: int) -> str:
    return "".join(segment.text for segment in segments if segment.channel == channel)


@pytest.mark.parametrize("seed", range(300))
def test_no_chunking_of_tokens_changes_the_texts(tiny_tokenizer: Tokenizer, seed: int) -> None:
    generator = random.Random(seed)
    text = "".join(generator.choices(ALPHABET, k=generator.randint(1, 14)))
    if generator.random() < 0.6:
        text = f"<think>{text}"
    whole = unpack(tiny_tokenizer.encode(text, add_special_tokens=False)).tolist()
    ids = [i for t in text for i in t.encode()] if generator.random() < 0.4 else whole
    place = generator.choice([Place.START, Place.PROMPTED, Place.THOUGHTS, Place.CLOSED])
    stops = StopStrings(generator.choice([(), ("END",), ("</think>\n",)]), include=seed % 2 == 0)
    alone, num_alone = streamed(tiny_tokenizer, ids, range(1, len(ids)), place, stops)
    together, num_together = streamed(tiny_tokenizer, ids, (), place, stops)
    cuts = sorted(generator.sample(range(len(ids)), k=generator.randint(0, len(ids) - 1)))
    cut, num_cut = streamed(tiny_tokenizer, ids, cuts, place, stops)
    for channel in (ANSWER, REASONING):
        assert told(alone, channel) == told(together, channel) == told(cut, channel)
    assert num_alone == num_together == num_cut
    assert sum(segment.num_tokens for segment in cut) <= len(ids)
    if not stops.first_chars:
        assert (told(cut, REASONING), told(cut, ANSWER)) == split([text], place)


def test_tokens_belong_to_one_channel_each(tiny_tokenizer: Tokenizer) -> None:
    begin, end = (tiny_tokenizer.id_of(tag) or 0 for tag in ("<think>", "</think>"))
    ids = [begin, 97, 98, end, 10, 99]
    segments, num_reasoning = streamed(tiny_tokenizer, ids, (), Place.START, StopStrings(()))
    parts = [(s.channel, s.text, s.num_tokens) for s in segments]
    assert parts == [(REASONING, "ab", 4), (ANSWER, "c", 2)] and num_reasoning == 4


def test_a_resumed_stream_says_only_what_is_new(tiny_tokenizer: Tokenizer) -> None:
    ids = list("<think>né\n</think>\nsö".encode())
    whole, _ = streamed(tiny_tokenizer, ids, (), Place.START, StopStrings(()))
    raw = "".join(segment.text for segment in whole).encode()
    for size in (0, 1, 3, 4, len(raw)):
        text = TextStream(tiny_tokenizer.detokenizer(False), StopStrings(()), frozenset())
        stream = SplitStream(text, Place.START, size)
        segments = stream.push(ids)
        assert "".join(s.text for s in segments).encode() == raw[size:]
        assert stream.text_bytes == len(raw) and segments[0].text_offset == size
