"""Gathers what one engine step means into one TextBatch per gateway session, and joins batches.

Knows columns; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protos.columns import pack, unpack
from protos.common_pb2 import Finish, PromptProgress
from protos.tokenizer_pb2 import Started, TextBatch, TextLogprobs
from tokenizer_service.reasoning import ANSWER, REASONING, Segment
from tokenizer_service.ticket import Session


class SessionText:
    """Columns of one session in one step."""

    __slots__ = (
        "counts",
        "finishes",
        "logprobs",
        "progress",
        "reasoning_at",
        "slots",
        "started",
        "text_offsets",
        "texts",
        "token_ids",
        "token_offsets",
    )

    def __init__(self) -> None:
        self.started: list[Started] = []
        self.slots: list[int] = []
        self.text_offsets: list[int] = []
        self.texts: list[str] = []
        self.counts: list[int] = []
        self.token_offsets: list[int] = []
        self.token_ids: list[int] = []
        self.finishes: list[Finish] = []
        self.logprobs: list[TextLogprobs] = []
        self.progress: list[PromptProgress] = []
        self.reasoning_at: list[int] = []
        """Places of the entries that are on the reasoning channel."""

    def add(
        self, slot: int, text_offset: int, text: str, token_offset: int, token_ids: Sequence[int]
    ) -> None:
        """Add an entry on the answer channel."""
        self.slots.append(slot)
        self.text_offsets.append(text_offset)
        self.texts.append(text)
        self.counts.append(len(token_ids))
        self.token_offsets.append(token_offset)
        self.token_ids.extend(token_ids)

    def add_segments(
        self, slot: int, segments: Sequence[Segment], token_offset: int, token_ids: Sequence[int]
    ) -> None:
        """Add an entry per segment; their tokens are `token_ids`, in order."""
        at = 0
        for segment in segments:
            if segment.channel == REASONING:
                self.reasoning_at.append(len(self.slots))
            tokens = token_ids[at : at + segment.num_tokens]
            self.add(slot, segment.text_offset, segment.text, token_offset + at, tokens)
            at += segment.num_tokens

    def append(self, slot: int, text_offset: int, text: str, token_offset: int) -> None:
        """Add text without tokens: to the slot's entry when it has one, else as its own."""
        for at in range(len(self.slots) - 1, -1, -1):
            if self.slots[at] == slot:
                self.texts[at] += text
                return
        self.add(slot, text_offset, text, token_offset, ())

    def _channels(self) -> bytes:
        """Return the column, empty when all is answer."""
        if not self.reasoning_at:
            return b""
        channels = [ANSWER] * len(self.slots)
        for at in self.reasoning_at:
            channels[at] = REASONING
        return pack(channels)

    def message(self) -> TextBatch:
        return TextBatch(
            slots=pack(self.slots),
            text_offsets=pack(self.text_offsets),
            texts=self.texts,
            counts=pack(self.counts),
            token_offsets=pack(self.token_offsets),
            token_ids=pack(self.token_ids),
            started=self.started,
            finishes=self.finishes,
            logprobs=self.logprobs,
            channels=self._channels(),
            progress=self.progress,
        )


class StepText:
    """The sessions that one engine step concerns."""

    def __init__(self) -> None:
        self._sessions: dict[Session, SessionText] = {}
        self.num_tokens = 0
        """Output tokens that were new and made text."""

    def of(self, session: Session) -> SessionText:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = SessionText()
        return found

    def deliver(self) -> None:
        """Hand each session its batch."""
        for session, text in self._sessions.items():
            session.sink(text.message())


def merged(batches: Sequence[TextBatch]) -> TextBatch:
    """Join batches of one session, oldest first: one entry per slot and channel, nothing lost.

    Each entry's offsets are those of its first part, as a slot's tokens and texts are contiguous.
    Of a prompt's progress only the last word is kept.
    """
    if len(batches) == 1:
        return batches[0]
    rows: dict[int, list[Row]] = {}
    progress: dict[int, PromptProgress] = {}
    joined = SessionText()
    for batch in batches:
        for row in entries(batch):
            join_row(rows.setdefault(row.slot, []), row)
        joined.started.extend(batch.started)
        joined.finishes.extend(batch.finishes)
        joined.logprobs.extend(batch.logprobs)
        progress.update({told.slot: told for told in batch.progress})
    for row in (row for of_slot in rows.values() for row in of_slot):
        part = Segment(row.channel, row.text_offset, "".join(row.texts), len(row.token_ids))
        joined.add_segments(row.slot, [part], row.token_offset, row.token_ids)
    joined.progress.extend(progress.values())
    return joined.message()


@dataclass(slots=True)
class Row:
    """One entry while batches are joined."""

    slot: int
    channel: int
    text_offset: int
    texts: list[str]
    token_offset: int
    token_ids: list[int]


def join_row(rows: list[Row], new: Row) -> None:
    """Join `new` to the last of its slot's rows, unless it begins another channel."""
    if not rows or rows[-1].channel != new.channel:
        rows.append(new)
        return
    rows[-1].texts += new.texts
    rows[-1].token_ids += new.token_ids


def entries(batch: TextBatch) -> Iterable[Row]:
    """Yield the batch's columns as rows."""
    token_ids, at = unpack(batch.token_ids), 0
    columns = (batch.slots, batch.text_offsets, batch.counts, batch.token_offsets)
    channels = unpack(batch.channels) or [ANSWER] * len(batch.texts)
    for (slot, text_offset, count, token_offset), text, channel in zip(
        zip(*map(unpack, columns), strict=True), batch.texts, channels, strict=True
    ):
        ids = list(token_ids[at : at + count])
        yield Row(slot, channel, text_offset, [text], token_offset, ids)
        at += count
