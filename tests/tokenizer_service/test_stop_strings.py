"""The first stop string ends the text, wherever the pieces were cut, and none of it leaks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenizer_service.stop_strings import StopScan, StopStrings

STOPS = st.lists(st.text("ab<é", min_size=1, max_size=5), min_size=1, max_size=4)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The slow truth: the stop that ends first; of those, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def scan(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    scanner = StopScan(StopStrings(stops, include))
    text = ""
    for piece in pieces:
        text += scanner.feed(piece)
        if scanner.matched is not None:
            return text, scanner.matched
    return text + scanner.held, None


@given(st.lists(st.text("ab<é", max_size=6), max_size=8), STOPS, st.booleans())
def test_pieces_do_not_matter(pieces: list[str], stops: list[str], include: bool) -> None:
    whole = "".join(pieces)
    match = first_match(whole, stops)
    if match is None:
        assert scan(pieces, stops, include) == (whole, None)
    else:
        end, stop = match
        text = whole[: end if include else end - len(stop)]
        assert scan(pieces, stops, include) == (text, stop)


@given(st.text("ab<é", max_size=20), STOPS)
def test_what_is_held_is_exactly_what_may_still_match(text: str, stops: list[str]) -> None:
    scanner = StopScan(StopStrings(stops))
    sent = "".join(scanner.feed(char) for char in text if scanner.matched is None)
    if scanner.matched is None:
        assert sent + scanner.held == text
        live = [n for n in range(1, 5) for s in stops if n < len(s) and text.endswith(s[:n])]
        assert len(scanner.held) == max(live, default=0)


def test_text_without_first_characters_passes_untouched() -> None:
    scanner = StopScan(StopStrings(["STOP"]))
    assert scanner.feed("nothing to see") == "nothing to see"
    assert scanner.feed("x ST") == "x " and scanner.held == "ST"
    assert scanner.feed("AR") == "STAR"
