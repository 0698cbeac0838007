"""Reads a StepResult against the plan it answers: which rows are sound, which failed, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from engine_core.scheduling.draft import Flight
from engine_core.scheduling.sequence import TokenEvent
from protos.worker import Logprobs, SequenceFault, StepResult


def is_plain(flight: Flight, result: StepResult) -> bool:
    """Return whether every row brought its one token, in the order of the plan."""
    return (
        not (result.faults or flight.guesses or flight.embeds)
        and len(result.token_ids) == len(result.counts) == result.counts.count(1)
        and [row.seq_id for row in flight.rows] == list(result.seq_ids)
    )


def tokens_by_row(result: StepResult) -> dict[int, tuple[int, ...]]:
    """Return the tokens of each seq_id of `result`."""
    found: dict[int, tuple[int, ...]] = {}
    start = 0
    for seq_id, count in zip(result.seq_ids, result.counts, strict=True):
        found[seq_id] = result.token_ids[start : start + count]
        start += count
    return found


def failures(flight: Flight, result: StepResult) -> dict[int, SequenceFault]:
    """Return why a row is not to be trusted, by seq_id: a fault, or not what it was to bring."""
    wrong = {fault.seq_id: fault for fault in result.faults}

    def note(seq_id: int, message: str) -> None:
        wrong.setdefault(seq_id, SequenceFault(seq_id, message))

    tokens = tokens_by_row(result)
    for row in flight.rows:
        got = len(tokens.get(row.seq_id, ()))
        most = 1 + flight.guesses.get(row.seq_id, 0)
        if not 1 <= got <= most:
            note(row.seq_id, f"the worker returned {got} tokens, not 1 to {most}")
    embedded = {bulk.key for bulk in result.bulks if bulk.embedding}
    for row in flight.embeds:
        if row.seq_id not in embedded:
            note(row.seq_id, "the worker returned no embedding")
    return wrong


def with_logprobs(
    events: Iterable[TokenEvent], flight: Flight, logprobs: Iterable[Logprobs]
) -> list[TokenEvent]:
    """Return `events` with the logprobs of their tokens, keyed by slot instead of seq_id."""
    places = {row.seq_id: (row.session, row.slot) for row in flight.rows}
    found: defaultdict[tuple[int, int], list[Logprobs]] = defaultdict(list)
    for row in logprobs:
        if place := places.get(row.key):
            found[place].append(Logprobs(place[1], row.index, row.token_ids, row.logprobs))
    return [
        msgspec.structs.replace(event, logprobs=_of(event, found[event.session, event.slot]))
        if event.token_ids and (event.session, event.slot) in found
        else event
        for event in events
    ]


def _of(event: TokenEvent, logprobs: Iterable[Logprobs]) -> tuple[Logprobs, ...]:
    """Return those of the tokens that `event` carries: what was overshot is not told."""
    end = event.offset + len(event.token_ids)
    return tuple(row for row in logprobs if row.index < end)


def joined(events: Iterable[TokenEvent]) -> list[TokenEvent]:
    """Return `events` with tokens of a slot that follow each other as one event."""
    found: list[TokenEvent] = []
    for event in events:
        last = found[-1] if found else event
        is_next = event.token_ids and event.offset == last.offset + len(last.token_ids)
        if found and is_next and (event.session, event.slot) == (last.session, last.slot):
            ids = last.token_ids + event.token_ids
            found[-1] = msgspec.structs.replace(last, token_ids=ids, finish=event.finish)
        else:
            found.append(event)
    return found
