"""Health is true: each way of making no progress has its sentence."""

from __future__ import annotations

import msgspec

from engine_core.replica import Fleet, Phase, Replica
from protos.worker import ModelFacts, ReplicaReady, SchedulerState

QUIET = SchedulerState(1, 2, 30, 40, 0.0, 0.1, 9, 1, 50, 60, 0.5, 2.0)
FACTS = ModelFacts(1000, 512, "twin", "m", 16, 40)


def fleet_of(*states: SchedulerState | None, now: float = 0.1) -> Fleet:
    fleet = Fleet(5.0, lambda: now)
    for number, state in enumerate(states, 1):
        replica = Replica(number, (), lambda _: None)
        replica.state = state
        if state is not None:
            replica.phase = Phase.READY
            replica.facts = ReplicaReady(FACTS, 40, 512)
        fleet.replicas[number] = replica
    return fleet


def changed(**fields: object) -> SchedulerState:
    return msgspec.structs.replace(QUIET, **fields)


def test_reasons() -> None:
    assert fleet_of().reasons() == ["no worker has registered"]
    assert fleet_of(None).reasons() == ["replica 1 is loading the model"]
    assert fleet_of(QUIET).reasons() == []
    assert fleet_of(QUIET, now=1.0).reasons() == [
        "replica 1: its scheduler has been silent for 1.0 s"
    ]
    assert fleet_of(changed(worker_age_s=1.9)).reasons() == [
        "replica 1: its worker has been silent for 2.0 s"
    ]
    assert fleet_of(changed(step_age_s=5.9)).reasons() == [
        "replica 1: a step has been running for 6.0 s"
    ]
    assert fleet_of(changed(leaks="block 3")).reasons() == [
        "replica 1: its ledger is wrong: block 3"
    ]


def test_one_healthy_replica_makes_it_ready_and_gets_the_work() -> None:
    fleet = fleet_of(changed(step_age_s=60.0), QUIET, None)
    fleet.replicas[2].num_live = 5
    assert fleet.reasons() == []
    assert fleet.pick() is fleet.replicas[2]
    fleet.replicas[2].phase = Phase.LOADING
    assert fleet.pick() is fleet.replicas[1]
    fleet.replicas[1].state = changed(worker_age_s=1.0)
    assert fleet.pick() is None, "what it got might be lost with it"
    assert fleet_of(QUIET, now=1.0).pick() is None


def test_the_report_sums_up() -> None:
    fleet = fleet_of(QUIET, changed(num_free_blocks=10))
    report = fleet.report("e", 3, [])
    assert (report.ready, report.num_waiting, report.num_running) == (True, 5, 4)
    assert (report.num_blocks, report.kv_usage, report.fingerprint) == (80, 0.5, "twin context=512")
    fleet.replicas[2].facts = ReplicaReady(FACTS, 40, 256)
    assert fleet.report("e", 0, []).fingerprint == "twin context=256+twin context=512"
    assert not fleet.report("e", 0, ["draining"]).ready
