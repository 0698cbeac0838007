"""Gathers what one engine step means into one TextBatch per gateway session, and joins batches.

Knows columns; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protos.common_pb2 import Finish
from protos.tokenizer_pb2 import Started, TextBatch, TextLogprobs
from tokenizer_service.columns import pack, unpack
from tokenizer_service.ticket import Session


class SessionText:
    """Columns of one session in one step."""

    __slots__ = (
        "counts",
        "finishes",
        "logprobs",
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

    def add(
        self, slot: int, text_offset: int, text: str, token_offset: int, token_ids: Sequence[int]
    ) -> None:
        self.slots.append(slot)
        self.text_offsets.append(text_offset)
        self.texts.append(text)
        self.counts.append(len(token_ids))
        self.token_offsets.append(token_offset)
        self.token_ids.extend(token_ids)

    def append(self, slot: int, text_offset: int, text: str, token_offset: int) -> None:
        """Add text without tokens: to the slot's entry when it has one, else as its own."""
        for at in range(len(self.slots) - 1, -1, -1):
            if self.slots[at] == slot:
                self.texts[at] += text
                return
        self.add(slot, text_offset, text, token_offset, ())

    def message(self, step_id: int = 0, timestamp_ns: int = 0) -> TextBatch:
        return TextBatch(
            step_id=step_id,
            timestamp_ns=timestamp_ns,
            slots=pack(self.slots),
            text_offsets=pack(self.text_offsets),
            texts=self.texts,
            counts=pack(self.counts),
            token_offsets=pack(self.token_offsets),
            token_ids=pack(self.token_ids),
            started=self.started,
            finishes=self.finishes,
            logprobs=self.logprobs,
        )


class StepText:
    """The sessions that one engine step concerns."""

    def __init__(self, step_id: int = 0, timestamp_ns: int = 0) -> None:
        self._step_id = step_id
        self._timestamp_ns = timestamp_ns
        self._sessions: dict[Session, SessionText] = {}

    def of(self, session: Session) -> SessionText:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = SessionText()
        return found

    def deliver(self) -> None:
        """Hand each session its batch."""
        for session, text in self._sessions.items():
            session.sink(text.message(self._step_id, self._timestamp_ns))


def merged(batches: Sequence[TextBatch]) -> TextBatch:
    """Join batches of one session, oldest first: one entry per slot, nothing lost.

    Each slot's offsets are those of its first entry, as its tokens and texts are contiguous.
    """
    if len(batches) == 1:
        return batches[0]
    rows: dict[int, Row] = {}
    joined = SessionText()
    for batch in batches:
        for row in entries(batch):
            rows.setdefault(row.slot, row).join(row)
        joined.started.extend(batch.started)
        joined.finishes.extend(batch.finishes)
        joined.logprobs.extend(batch.logprobs)
    for row in rows.values():
        joined.add(row.slot, row.text_offset, "".join(row.texts), row.token_offset, row.token_ids)
    return joined.message(batches[-1].step_id, batches[-1].timestamp_ns)


class Row:
    """One slot's entry while batches are joined."""

    __slots__ = ("slot", "text_offset", "texts", "token_ids", "token_offset")

    def __init__(
        self, slot: int, text_offset: int, text: str, token_offset: int, token_ids: Sequence[int]
    ) -> None:
        self.slot = slot
        self.text_offset = text_offset
        self.texts = [text]
        self.token_offset = token_offset
        self.token_ids = list(token_ids)

    def join(self, other: Row) -> None:
        if other is not self:
            self.texts += other.texts
            self.token_ids += other.token_ids


def entries(batch: TextBatch) -> Iterable[Row]:
    """Yield the batch's columns as rows."""
    token_ids, at = unpack(batch.token_ids), 0
    columns = (batch.slots, batch.text_offsets, batch.counts, batch.token_offsets)
    for (slot, text_offset, count, token_offset), text in zip(
        zip(*map(unpack, columns), strict=True), batch.texts, strict=True
    ):
        yield Row(slot, text_offset, text, token_offset, token_ids[at : at + count])
        at += count
