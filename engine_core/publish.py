"""TokenEvents of one step → one StepOutput: columns per session, sparse rows for what is rare."""

from __future__ import annotations

from collections.abc import Iterable

from engine_core.scheduling.sequence import TokenEvent
from protos.columns import pack
from protos.worker import Bulk, Finished, Logprobs, Progress, SessionOutput, StepOutput


class Columns:
    """What one session gets of one step; entry i is about `slots[i]`."""

    __slots__ = (
        "bulks", "counts", "finishes", "logprobs", "offsets", "progress", "slots", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.counts: list[int] = []
        self.offsets: list[int] = []
        self.tokens: list[int] = []
        self.finishes: list[Finished] = []
        self.logprobs: list[Logprobs] = []
        self.bulks: list[Bulk] = []
        self.progress: list[Progress] = []

    def output(self, session: int) -> SessionOutput:
        """Return the columns as bytes; `counts` stays empty when every entry has one token."""
        is_plain = len(self.tokens) == len(self.slots) == self.counts.count(1)
        return SessionOutput(
            session=session,
            slots=pack(self.slots),
            counts=b"" if is_plain else pack(self.counts),
            token_offsets=pack(self.offsets),
            token_ids=pack(self.tokens),
            finishes=tuple(self.finishes),
            logprobs=tuple(self.logprobs),
            bulks=tuple(self.bulks),
            progress=tuple(self.progress),
        )


def step_output(events: Iterable[TokenEvent]) -> StepOutput:
    """Return `events` as one message, in their order within each session."""
    sessions: dict[int, Columns] = {}
    for event in events:
        columns = sessions.get(event.session)
        if columns is None:
            columns = sessions[event.session] = Columns()
        token_ids = event.token_ids
        if token_ids:
            columns.slots.append(event.slot)
            columns.counts.append(len(token_ids))
            columns.offsets.append(event.offset)
            columns.tokens += token_ids
        if event.finish is not None:
            columns.finishes.append(event.finish)
        if event.logprobs:
            columns.logprobs += event.logprobs
        if event.bulks:
            columns.bulks += event.bulks
        if event.progress is not None:
            columns.progress.append(event.progress)
    outputs = tuple(columns.output(session) for session, columns in sessions.items())
    return StepOutput(outputs)
