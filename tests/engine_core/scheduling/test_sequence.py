"""The table of states: nothing leaves an end, and what is planned for later is already there."""

from __future__ import annotations

import gc
from array import array
from dataclasses import replace
from typing import Any

import pytest

from engine_core.scheduling.request import FinishReason, Request
from engine_core.scheduling.sequence import FINISHED, TRANSITIONS, Room, Sequence, Status
from protos.limits import PROOF_TOKENS
from protos.worker import Finished, Limits
from tests.engine_core.scheduling.scenario import Scenario

CUT_OFF = ("ABORTED", "DEADLINE", "STOPPED")


def sequence(has_grammar: bool = False) -> Sequence:
    limits = Limits(4, min_tokens=1, has_grammar=has_grammar)
    request = Request(1, 2, "r", array("I", [1, 2]), (), limits, frozenset([9]), b"", 0, 5.0, None)
    return Sequence(1, request, 0, Room(100, 100))


def test_every_state_is_in_the_table_and_can_end() -> None:
    assert set(TRANSITIONS) == set(Status)
    ends = set(FINISHED.values())
    assert len(ends) == len(FinishReason) - 1
    from_outside = {FINISHED[reason] for reason in FinishReason if reason.name in CUT_OFF}
    for status, following in TRANSITIONS.items():
        assert following == frozenset() if status in ends else from_outside <= following
    assert ends <= frozenset[Status]().union(*TRANSITIONS.values())
    assert Status.WAITING in TRANSITIONS[Status.WAITING_FOR_GRAMMAR]
    assert Status.WAITING in TRANSITIONS[Status.WAITING_FOR_REMOTE_KVS]
    assert Status.RUNNING not in TRANSITIONS[Status.PREEMPTED]


def test_a_move_off_the_table_is_caught() -> None:
    row = sequence()
    with pytest.raises(AssertionError, match="WAITING → .*PREEMPTED"):
        row.move(Status.PREEMPTED)


def test_endings() -> None:
    row = sequence()
    row.tokens.append(9)
    assert row.ending() is FinishReason.UNFINISHED  # before min_tokens
    row.tokens.append(9)
    assert row.ending() is FinishReason.STOPPED
    row.tokens.extend([8, 9])
    assert row.ending() is FinishReason.STOPPED  # stopping outranks the length
    row.tokens[-1] = 8
    assert row.ending() is FinishReason.LENGTH


def test_phases() -> None:
    row = sequence()
    assert row.phases(6.0) == (1.0, 0.0, 0.0)
    row.scheduled_at = 7.0
    assert row.phases(8.0) == (2.0, 1.0, 0.0)
    row.first_token_at, row.last_token_at = 10.0, 14.0
    assert row.phases(99.0) == (2.0, 3.0, 4.0)


def phases_of(add: str, *steps_at: tuple[float, float]) -> tuple[float, float, float]:
    """Return the phases in the end of one request that comes at 10 and is computed in steps."""
    scenario, ends = Scenario(), []
    scenario.now = 10.0
    assert scenario.run(f"add slot=1 {add}") == "ok"
    finish = scenario.scheduler._roster.finish

    def spy(*args: Any, **more: Any) -> Finished:
        ends.append(finish(*args, **more))
        return ends[-1]

    scenario.scheduler._roster.finish = spy  # type: ignore[method-assign]
    for planned_at, applied_at in steps_at:
        scenario.now = planned_at
        scenario.run("plan")
        scenario.now = applied_at
        scenario.run("apply")
    ((queue_s, prefill_s, decode_s),) = [(e.queue_s, e.prefill_s, e.decode_s) for e in ends]
    return queue_s, prefill_s, decode_s


def test_an_end_tells_how_long_each_phase_was() -> None:
    steps = ((11.0, 13.0), (14.0, 17.0), (18.0, 20.0))
    assert phases_of("prompt=4 max=3", *steps) == (1.0, 2.0, 7.0)
    assert phases_of("prompt=4 kind=embed", steps[0]) == (1.0, 2.0, 0.0)
    assert phases_of("prompt=4 kind=score prompt_logprobs=1", steps[0]) == (1.0, 2.0, 0.0)


def test_a_complete_grammar_ends_before_min_tokens() -> None:
    """Until it is complete the sampler forbids its end: one that is drawn is all there can be."""
    row = sequence(has_grammar=True)
    row.tokens[-1] = 9
    assert row.ending() is FinishReason.UNFINISHED, "that is the prompt's"
    row.tokens.append(9)
    assert row.ending() is FinishReason.STOPPED


def test_a_suspect_is_one_until_it_has_drawn_enough() -> None:
    request = replace(sequence().request, attempt=2, resumed=(array("I", [3] * 20),))
    row = Sequence(1, request, 0, Room(100, 100))
    assert row.is_suspect
    row.tokens.extend([4] * PROOF_TOKENS)
    assert not row.is_suspect


ENDS = """
pool blocks=8 block_size=4 budget=16 cache=on
add slot=1 prompt=9 n=3 max=2
add slot=4 prompt=7 max=30
add slot=5 prompt=20 max=9
add slot=6 prompt=6 kind=embed max=1
add slot=7 prompt=5 max=3 n=2 resumed='1,2,3 1,2,3'
add slot=9 prompt=5 max=3 n=2 grammar=g
abort slot=9
step
abort slot=5
step
step
answer errand=1
step
step
abort slot=4
step
step
step
state
"""


def test_what_has_ended_waits_for_no_collection_of_garbage() -> None:
    """Collections are rare: a hundred KiB of each long prompt lay about for thousands of them."""
    gc.collect()
    before = sum(isinstance(one, Sequence) for one in gc.get_objects())
    gc.disable()
    try:
        scenario = Scenario()
        told = [scenario.run(line) for line in ENDS.split("\n") if line]
        assert told[-1].endswith("running=0 waiting=0")
        assert sum(isinstance(one, Sequence) for one in gc.get_objects()) == before
    finally:
        gc.enable()
