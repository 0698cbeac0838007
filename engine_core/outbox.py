"""What one caller has not been sent yet. A slow caller gets fewer, longer messages; nobody waits.

On the normal path a step's columns pass through untouched. Only when several steps have piled up
are they joined, one entry a slot.
"""

from __future__ import annotations

from array import array

from engine_core.publish import Columns
from engine_core.translate import to_batch, to_bulk
from protos.engine_pb2 import EngineReply
from protos.worker import SessionOutput

MAX_PENDING = 64
"""Steps that may pile up before they are joined: bounds what a stuck caller costs."""


class Outbox:
    """Pending output of one session, oldest first."""

    def __init__(self) -> None:
        self._pending: list[SessionOutput] = []

    def put(self, output: SessionOutput) -> None:
        self._pending.append(output)
        if len(self._pending) >= MAX_PENDING:
            self._pending = [merged(self._pending)]

    def take(self) -> list[EngineReply]:
        """Return all that is pending: bulks, each a message, then one batch for all the rest."""
        pending, self._pending = self._pending, []
        if not pending:
            return []
        output = pending[0] if len(pending) == 1 else merged(pending)
        replies = [EngineReply(bulk=to_bulk(row)) for row in output.bulks]
        return [*replies, EngineReply(batch=to_batch(output))]


def merged(outputs: list[SessionOutput]) -> SessionOutput:
    """Return `outputs` of one session as one: the entries of a slot are joined, in order."""
    columns = Columns()
    tokens: dict[int, list[int]] = {}
    for output in outputs:
        token_ids = array("I", output.token_ids)
        slots = array("I", output.slots)
        counts = array("I", output.counts) if output.counts else array("I", [1]) * len(slots)
        start = 0
        for slot, count, offset in zip(
            slots, counts, array("I", output.token_offsets), strict=True
        ):
            if slot not in tokens:
                tokens[slot] = []
                columns.slots.append(slot)
                columns.offsets.append(offset)
            tokens[slot] += token_ids[start : start + count]
            start += count
        columns.finishes += output.finishes
        columns.logprobs += output.logprobs
        columns.bulks += output.bulks
        columns.progress += output.progress
    for slot in columns.slots:
        columns.counts.append(len(tokens[slot]))
        columns.tokens += tokens[slot]
    return columns.output(outputs[0].session)
