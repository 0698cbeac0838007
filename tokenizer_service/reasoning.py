"""Parts a model's thoughts from its answer: `<think>thoughts</think>answer`, as they arrive.

`ThoughtSplit` reads settled text, so a tag may be one added token or be spelled by several;
`SplitStream` feeds it token by token, so nothing depends on how the tokens were cut into steps.
The rules are those of vLLM's and SGLang's parsers where these agree:

- The text begins inside the thoughts when the prompt has opened them; then a repeated `<think>` is
  dropped. Otherwise it is all answer unless its first word is `<think>`.
- The first `</think>` ends the thoughts for good. Both tags belong to neither text.
- Newlines right after `<think>`, right before and right after `</think>` belong to neither text.
- Stop strings act on all text, tags included, before it is parted: as in vLLM.
- Tokens up to and with the end tag are the thoughts' tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tokenizer_service.text_stream import TextStream, utf8_length, without

OPEN, CLOSE = "<think>", "</think>"
ANSWER, REASONING = 0, 1
"""Channels, as in TextBatch."""


class Place(Enum):
    """Where the end of the text is."""

    START = auto()
    """Before anything: the first word decides."""
    PROMPTED = auto()
    """The prompt has opened the thoughts; the tag may come once more."""
    OPENED = auto()
    """Behind `<think>` and newlines."""
    THOUGHTS = auto()
    CLOSED = auto()
    """Behind `</think>` and newlines."""
    ANSWER = auto()


INSIDE = frozenset({Place.PROMPTED, Place.OPENED, Place.THOUGHTS})


def place_after(prompt_end: str, continued: str) -> Place:
    """Return where the text begins after a prompt.

    `continued` is the begin of an answer that goes on. Text of users is not looked at: only what
    the template writes last, and what was to go on, can open or close the thoughts.
    """
    if continued:
        is_open = continued.rfind(OPEN) > continued.rfind(CLOSE)
        return Place.THOUGHTS if is_open else Place.ANSWER
    end = prompt_end.rstrip()
    if end.endswith(OPEN):
        return Place.PROMPTED
    return Place.CLOSED if end.endswith(CLOSE) else Place.START


class ThoughtSplit:
    """The state machine. What may still become a tag, or newlines before one, is held back."""

    __slots__ = ("_blanks", "_held", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self._held = ""
        self._blanks: list[str] = []
        """White space behind `_held`, which decides nothing: a long run is read once."""

    def feed(self, text: str) -> list[tuple[int, str]]:
        """Return what `text` settles: (channel, text), at most one of each, thoughts first."""
        if self._is_answering():
            return [(ANSWER, text)]
        self._blanks.append(text)
        is_begin = self.place in (Place.START, Place.PROMPTED)
        if is_begin and text.isspace() or self.place is Place.THOUGHTS and not text.strip("\n"):
            return []
        self._held = self._take()
        if is_begin:
            self._begin()
        if self.place is Place.OPENED:
            self._skip_newlines(Place.THOUGHTS)
        thoughts = self._think() if self.place is Place.THOUGHTS else ""
        if self.place is Place.CLOSED:
            self._skip_newlines(Place.ANSWER)
        answer = self._take() if self._is_answering() else ""
        both = ((REASONING, thoughts), (ANSWER, answer))
        return [(channel, piece) for channel, piece in both if piece]

    def _is_answering(self) -> bool:
        return self.place is Place.ANSWER

    def flush(self) -> list[tuple[int, str]]:
        """Return what was held back, at the end of the text."""
        held = self._take()
        return [(REASONING if self.place in INSIDE else ANSWER, held)] if held else []

    def _begin(self) -> None:
        """Look for the opening tag."""
        word = self._held.lstrip()
        if word.startswith(OPEN):
            self._held = word[len(OPEN) :]
            self.place = Place.OPENED
        elif not OPEN.startswith(word):
            self.place = Place.ANSWER if self.place is Place.START else Place.OPENED

    def _skip_newlines(self, then: Place) -> None:
        self._held = self._held.lstrip("\n")
        if self._held:
            self.place = then

    def _think(self) -> str:
        if "<" not in self._held and not self._held.endswith("\n"):
            return self._take()  # no tag begins: nearly every token
        at = self._held.find(CLOSE)
        if at >= 0:
            thoughts = self._held[:at].rstrip("\n")
            self._held = self._held[at + len(CLOSE) :]
            self.place = Place.CLOSED
            return thoughts
        settled = settled_chars(self._held)
        thoughts, self._held = self._held[:settled], self._held[settled:]
        return thoughts

    def _take(self) -> str:
        held = self._held + "".join(self._blanks)
        self._held = ""
        self._blanks.clear()
        return held


def settled_chars(thoughts: str) -> int:
    """Return where newlines and the beginning of an end tag begin that end `thoughts`."""
    begun = next(n for n in range(len(CLOSE) - 1, -1, -1) if thoughts.endswith(CLOSE[:n]))
    return len(thoughts[: len(thoughts) - begun].rstrip("\n"))


@dataclass(slots=True)
class Segment:
    """What some tokens mean for one channel."""

    channel: int
    text_offset: int
    """UTF-8 bytes of both channels before this text."""
    text: str = ""
    num_tokens: int = 0


class SplitStream:
    """A `TextStream` whose text goes out on two channels; one choice's."""

    __slots__ = ("_skip_bytes", "_split", "_stream", "num_reasoning_tokens", "text_bytes")

    def __init__(self, stream: TextStream, place: Place, resume_bytes: int = 0) -> None:
        """`resume_bytes`: text before this offset is never returned again."""
        self._stream = stream
        self._split = ThoughtSplit(place)
        self._skip_bytes = resume_bytes
        self.text_bytes = resume_bytes
        self.num_reasoning_tokens = 0

    def push(self, token_ids: Sequence[int]) -> list[Segment]:
        """Return what these tokens settle, each token in one segment; none after a stop string."""
        if self._split.place is Place.ANSWER and not self._skip_bytes:
            return [self._answer(token_ids)]
        segments: list[Segment] = []
        for token_id in token_ids:
            channel, pieces = self._step(token_id)
            self._segment(segments, channel).num_tokens += 1
            self._add(segments, pieces)
            if self._stream.matched is not None:
                self._add(segments, self._split.flush())
                break
        return segments

    def _answer(self, token_ids: Sequence[int]) -> Segment:
        """Take tokens behind all thoughts: there is nothing to part any more."""
        before = self._stream.num_tokens
        text = self._stream.push(token_ids)
        segment = Segment(ANSWER, self.text_bytes, text, self._stream.num_tokens - before)
        self.text_bytes += utf8_length(text)
        return segment

    def _step(self, token_id: int) -> tuple[int, list[tuple[int, str]]]:
        """Return the token's channel, and the texts it settles."""
        before = self._split.place
        text = self._stream.push((token_id,))
        pieces = self._split.feed(text) if text else []
        if before in INSIDE:
            self.num_reasoning_tokens += 1
        elif before is Place.START and self._split.place not in (Place.START, Place.ANSWER):
            self.num_reasoning_tokens = self._stream.num_tokens  # all so far spelled the tag
        else:
            return ANSWER, pieces
        return REASONING, pieces

    def flush(self) -> list[Segment]:
        """Return what was held back, at the end of the stream."""
        segments: list[Segment] = []
        if text := self._stream.flush():
            self._add(segments, self._split.feed(text))
        self._add(segments, self._split.flush())
        return segments

    def _add(self, segments: list[Segment], pieces: list[tuple[int, str]]) -> None:
        for channel, piece in pieces:
            if self._skip_bytes:
                piece, self._skip_bytes = without(piece, self._skip_bytes)
            segment = self._segment(segments, channel)
            segment.text += piece
            self.text_bytes += utf8_length(piece)

    def _segment(self, segments: list[Segment], channel: int) -> Segment:
        if not segments or segments[-1].channel != channel:
            segments.append(Segment(channel, self.text_bytes))
        return segments[-1]
