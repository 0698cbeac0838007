"""Every transition of the table is told by a golden story: none is there that nobody has seen."""

from __future__ import annotations

import pytest

from engine_core.scheduling.sequence import TRANSITIONS, Sequence, Status
from tests.engine_core.scheduling.test_stories import STORIES, replay


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
    missing = sorted(f"{before.name} → {after.name}" for before, after in table - seen)
    assert not missing, "no story tells: " + ", ".join(missing)
