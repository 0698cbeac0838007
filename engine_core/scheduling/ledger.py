"""The audit of the books: every table has its one owner, every sequence its one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from engine_core.scheduling.kv_layout import KvLayout
from engine_core.scheduling.sequence import Sequence, Status

Sessions = dict[int, dict[int, Sequence]]
"""Live sequences by session and slot."""


class Leaving(NamedTuple):
    """A row that is off the workers; plans have filled its table up to `num_planned` tokens."""

    sequence: Sequence
    num_planned: int


Returning = dict[int, list[Leaving]]
"""Rows whose table a plan in flight still names, by the plan's step_id."""


def discrepancies(
    layout: KvLayout,
    residents: Iterable[int],
    sessions: Sessions,
    waiting: Iterable[Sequence],
    running: Iterable[Sequence],
    held: Iterable[Sequence],
    paused: Iterable[Sequence],
    returning: Returning,
) -> list[str]:
    """Return everything that is wrong, each with its culprit.

    `residents` have a table though they are no sequence any more.
    """
    leaving = [one for rows in returning.values() for one in rows]
    held_rows = {row.seq_id: row for row in held}
    places = {
        Status.WAITING: {row.seq_id: row for row in waiting},
        Status.RUNNING: {row.seq_id: row for row in running},
        Status.WAITING_FOR_GRAMMAR: held_rows,
        Status.WAITING_FOR_REMOTE_KVS: held_rows,
        Status.PAUSED: {row.seq_id: row for row in paused},
        Status.PREEMPTED: {row.seq_id: row for row, _ in leaving},
    }
    live = {row.seq_id: row for rows in sessions.values() for row in rows.values()}
    expected = {*places[Status.RUNNING], *(row.seq_id for row, _ in leaving), *residents}
    found = layout.check()
    if strays := expected.symmetric_difference(layout.holders()):
        found.append(f"sequences {sorted(strays)} have a table or should have one, not both")
    found += [why for row in live.values() for why in _misplaced(row, places)]
    found += [why for row in live.values() for why in _out_of_bounds(row)]
    waits = (Status.WAITING, Status.WAITING_FOR_GRAMMAR, Status.PAUSED)
    for status in (Status.RUNNING, *waits):
        found += [f"{row}: orphan" for seq_id, row in places[status].items() if seq_id not in live]
    return found


def _misplaced(row: Sequence, places: Mapping[Status, Mapping[int, Sequence]]) -> Iterator[str]:
    if row.seq_id not in places.get(row.status, {}):
        yield f"{row}: is {row.status.name} but not among them"
    if row.is_paused and row.status in (Status.WAITING, Status.RUNNING):
        yield f"{row}: is to be held back and is {row.status.name}"
    if row.block_ids and row.status is not Status.RUNNING:
        yield f"{row}: is {row.status.name} and holds {len(row.block_ids)} blocks"


def _out_of_bounds(row: Sequence) -> Iterator[str]:
    if not row.num_computed <= row.num_planned <= row.capacity:
        yield f"{row}: computed {row.num_computed}, planned {row.num_planned} of {row.capacity}"
    if row.num_guesses > row.num_planned - row.num_computed:
        yield f"{row}: {row.num_guesses} guesses of {row.num_planned} planned"
    if len(row.tokens) > row.max_total:
        yield f"{row}: {len(row.tokens)} tokens, {row.max_total} allowed"
