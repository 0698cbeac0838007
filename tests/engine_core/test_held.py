"""Requests held for want of a replica."""

from __future__ import annotations

import msgspec
import pytest

from engine_core.held import HeldRequests
from protos.worker import Add, Limits


def add(slot: int, session: int = 1, n: int = 1, deadline_s: float | None = None) -> Add:
    limits = Limits(5, n=n, deadline_s=deadline_s, first_choice=2)
    return Add(session, slot, "r", b"", limits, b"", tuple(bytes([i]) for i in range(n)))


def test_order_and_bound() -> None:
    held = HeldRequests(3)
    assert held.hold(add(5, n=2), 0.0) is None
    assert held.hold(add(1), 0.0) is None
    problem = held.hold(add(9), 0.0)
    assert problem is not None and problem.kind == "Overloaded" and problem.retry_after_s > 0
    assert [one.slot for one in held.release(0.0)] == [5, 1]
    assert len(held) == 0


def test_time_spent_here_is_taken_off_the_deadline() -> None:
    held = HeldRequests(8)
    held.hold(add(1, deadline_s=5.0), 10.0)
    assert held.overdue(14.9) == []
    assert held.overdue(15.0) == [(1, 1)]
    (one,) = held.release(12.0)
    assert one.limits.deadline_s == pytest.approx(3.0)


def test_time_spent_here_is_age() -> None:
    held = HeldRequests(8)
    waited = msgspec.structs.replace(add(1).limits, waited_s=4.0)
    held.hold(msgspec.structs.replace(add(1), limits=waited), 10.0)
    (one,) = held.release(12.0)
    assert one.limits.waited_s == pytest.approx(6.0)


def test_a_choice_that_ended_here_is_not_sent() -> None:
    held = HeldRequests(8)
    held.hold(add(4, n=3), 0.0)
    held.drop(1, 5)
    rest = held.release(0.0)
    assert [(one.slot, one.limits.n, one.limits.first_choice) for one in rest] == [
        (4, 1, 2), (6, 1, 4),
    ]  # fmt: skip
    assert [one.resumed_token_ids for one in rest] == [(b"\0",), (b"\2",)]


def test_a_slot_is_dropped_of_its_session_alone() -> None:
    held = HeldRequests(8)
    for one in (add(1), add(1, session=2), add(7)):
        held.hold(one, 0.0)
    held.drop(1, 1)
    assert [(one.session, one.slot) for one in held.release(0.0)] == [(2, 1), (1, 7)]


def test_a_closed_session_leaves_nothing() -> None:
    held = HeldRequests(8)
    held.hold(add(1), 0.0)
    held.hold(add(1, session=2), 0.0)
    held.drop_session(1)
    assert [one.session for one in held.release(0.0)] == [2]


def test_a_flood_leaves_others_their_part() -> None:
    held = HeldRequests(4)
    for slot in range(4):
        assert held.hold(add(slot), 0.0) is None
    other = Add(2, 9, "r", b"", Limits(5, tenant="b"), b"")
    assert held.hold(add(5), 0.0) is not None
    assert held.hold(other, 0.0) is None


def test_what_was_let_in_before_its_replica_was_lost_is_held_whoever_waits() -> None:
    held = HeldRequests(1)
    assert held.hold(add(1), 0.0) is None
    assert held.hold(msgspec.structs.replace(add(2), attempt=1), 0.0) is None
    assert held.hold(add(3), 0.0) is not None
    assert [one.slot for one in held.release(0.0)] == [1, 2]
