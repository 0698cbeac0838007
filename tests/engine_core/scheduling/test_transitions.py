"""Every transition of the table is told by a golden story: none is there that nobody has seen."""

from __future__ import annotations

import pytest

from engine_core.scheduling.sequence import TRANSITIONS, Sequence, Status
from tests.engine_core.scheduling.test_stories import STORIES, replay

NOT_YET = {(Status.WAITING, Status.WAITING_FOR_REMOTE_KVS)} | {
    (Status.WAITING_FOR_REMOTE_KVS, after) for after in TRANSITIONS[Status.WAITING_FOR_REMOTE_KVS]
}
"""Nobody goes there today."""


def test_the_stories_reach_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set[tuple[Status, Status]]()
    move = Sequence.move

    def watched(sequence: Sequence, status: Status) -> None:
        seen.add((sequence.status, status))
        move(sequence, status)

    monkeypatch.setattr(Sequence, "move", watched)
    for path in STORIES:
        replay(path.read_text())
    table = {(before, after) for before, following in TRANSITIONS.items() for after in following}
    missing = sorted(f"{before.name} → {after.name}" for before, after in table - seen - NOT_YET)
    assert not missing, "no story tells: " + ", ".join(missing)
    reached = sorted(f"{before.name} → {after.name}" for before, after in NOT_YET & seen)
    assert not reached, "take out of NOT_YET: " + ", ".join(reached)
