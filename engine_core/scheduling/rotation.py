"""Rotation: a context shift without computing again. The cells stay, their keys are turned.

Only where positions can move (SLOT), and only for who asks for it: a turned key is not the key that
would be computed at the new place, because the layers below have seen what is gone. The row starts
anew at the workers, in its own cells; those that others own are cloned first.
"""

from __future__ import annotations

from array import array

from engine_core.scheduling.context_shift import drop_middle, middle
from engine_core.scheduling.draft import Draft
from engine_core.scheduling.kv_layout import Grant, OutOfBlocks
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.rows import start_row
from engine_core.scheduling.sequence import Sequence, Status
from protos.worker import Shift


def turn_full(roster: Roster, draft: Draft, now: float) -> None:
    """Plan the rows of `roster.full` shortened and turned, each with its next token.

    One for which there are no cells is computed anew. No plan in flight names any of them: what
    made them full came of the last.
    """
    rows, roster.full = roster.full, []
    for sequence in rows:  # or it has left since
        if sequence.status is Status.RUNNING and not _turn(sequence, roster, draft):
            roster.set_back(sequence, now)


def _turn(sequence: Sequence, roster: Roster, draft: Draft) -> bool:
    layout, seq_id, gone = roster.layout, sequence.seq_id, middle(sequence)
    roster.cache.exclude(sequence)
    layout.seq_rm(seq_id, gone.start, gone.stop)
    grant = _close(sequence, gone, roster)
    if grant is None:
        return False
    num_computed = sequence.num_computed - len(gone)
    drop_middle(sequence)
    sequence.capacity = len(sequence.block_ids) * layout.block_size
    sequence.num_computed = sequence.num_planned = num_computed
    sequence.num_expected = len(sequence.tokens)
    if sequence.num_expected > sequence.capacity:
        if not layout.num_available:
            return False
        roster.grow(sequence, 1)
    cells = array("I", sequence.block_ids[gone.start : num_computed]).tobytes()
    draft.copies += grant.copies
    draft.shifts.append(Shift(seq_id, cells, -len(gone)))
    roster.restart(sequence)
    roster.tally.num_decode_tokens += 1
    count = draft.advance(sequence, draft.start_rows)
    draft.starts.append(start_row(sequence, num_computed, count))
    return True


def _close(sequence: Sequence, gone: range, roster: Roster) -> Grant | None:
    """Move what stands behind the gap; evict when clones need room. None = still too little."""
    layout, seq_id = roster.layout, sequence.seq_id
    try:
        return layout.seq_add(seq_id, gone.stop, None, -len(gone))
    except OutOfBlocks:
        roster.cache.evict(len(sequence.block_ids) - gone.stop)
    try:
        return layout.seq_add(seq_id, gone.stop, None, -len(gone))
    except OutOfBlocks:
        return None
