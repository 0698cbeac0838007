"""Gateways hear of engines often enough, at once when it matters, and when there is none."""

from __future__ import annotations

from protos.common_pb2 import EngineState
from protos.words import NO_ENGINE
from tests.support.fake_engine import ready_state
from tokenizer_service.placement import CONNECTION_LOST
from tokenizer_service.states import StateFeed


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def feed() -> tuple[StateFeed, Clock, list[EngineState]]:
    clock, heard = Clock(), list[EngineState]()
    states = StateFeed(clock, "engine:7200")
    states.join(heard.append)
    return states, clock, heard


def test_a_newcomer_hears_that_there_is_no_engine_or_all_that_are() -> None:
    states, _, heard = feed()
    assert [(s.engine, s.ready) for s in heard] == [(NO_ENGINE, False)]
    assert heard[0].reasons == ["no engine connected (engine:7200)"], "its name may be wrong"
    states.tell(ready_state("a"))
    states.tell(ready_state("b"))
    late: list[EngineState] = []
    states.join(late.append)
    assert [s.engine for s in late] == ["a", "b"]


def test_unchanged_readiness_is_told_every_half_second() -> None:
    states, clock, heard = feed()
    heard.clear()
    for _ in range(10):
        states.tell(ready_state("a"))
        clock.now += 0.125
    assert len(heard) == 3


def test_a_change_of_readiness_is_told_at_once() -> None:
    states, _, heard = feed()
    heard.clear()
    for ready in (True, False, True, True):
        states.tell(ready_state("a", ready=ready))
    assert [s.ready for s in heard] == [True, False, True]


def test_a_lost_engine_is_told_once_and_forgotten() -> None:
    states, _, heard = feed()
    states.tell(ready_state("a"))
    heard.clear()
    states.tell(ready_state("a", ready=False, reasons=[CONNECTION_LOST]))
    assert [s.engine for s in heard] == ["a", NO_ENGINE] and not any(s.ready for s in heard)
    states.remind()
    assert len(heard) == 3


def test_who_left_hears_nothing() -> None:
    states, _, heard = feed()
    states.leave(heard.append)
    heard.clear()
    states.tell(ready_state("a"))
    assert not heard
