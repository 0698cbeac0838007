"""One caller's stream: its live slots and the one task that writes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine_core.outbox import Outbox
from engine_core.replica import Replica
from protos.common_pb2 import EngineState, QueryAnswer, SessionOpened
from protos.engine_pb2 import EngineReply
from protos.worker import Finished, SessionOutput

Write = Callable[[EngineReply], Awaitable[None]]


class CallerSession:
    """State of one stream. `number` fences it: what names another number is not of this stream."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.slots: dict[int, Replica | None] = {}
        """Live slots and where they run; None while no replica is ready."""
        self._outbox = Outbox()
        self.paused = set[int]()
        """Live slots that are held back."""
        self._answers: list[QueryAnswer] = []
        self._state: EngineState | None = None
        self._wake = asyncio.Event()

    def deliver(self, output: SessionOutput) -> None:
        """Queue what a step has brought and forget the slots it ends; never blocks."""
        for row in output.finishes:
            self.forget(row.slot)
        self._outbox.put(output)
        self._wake.set()

    def end(self, rows: list[Finished]) -> None:
        """Queue ends that no step has brought."""
        output = SessionOutput(self.number, b"", b"", b"", b"", tuple(rows))
        self.deliver(output)

    def tell(self, state: EngineState) -> None:
        """Queue the engine's state; only the latest is sent."""
        self._state = state
        self._wake.set()

    def answer(self, answer: QueryAnswer) -> None:
        """Queue the answer to a question about no slot."""
        self._answers.append(answer)
        self._wake.set()

    def place(self, slot: int, replica: Replica | None) -> None:
        """Note where a new or a held slot runs."""
        self.slots[slot] = replica
        if replica is not None:
            replica.num_live += 1

    def forget(self, slot: int) -> None:
        replica = self.slots.pop(slot, None)
        self.paused.discard(slot)
        if replica is not None:
            replica.num_live -= 1

    async def write_all(self, write: Write) -> None:
        """Send what is queued for ever; the only caller of `write`."""
        await write(EngineReply(opened=SessionOpened(session=self.number)))
        while True:
            await self._wake.wait()
            self._wake.clear()
            for reply in self._outbox.take():
                await write(reply)
            answers, self._answers = self._answers, []
            for answer in answers:
                await write(EngineReply(answer=answer))
            if self._state is not None:
                state, self._state = self._state, None
                await write(EngineReply(state=state))
