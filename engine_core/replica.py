"""A replica as the front sees it, and the fleet of all: who is ready, who is least loaded.

Knows what schedulers report. Does not know sessions, nor how a process is started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from protos.common_pb2 import EngineState
from protos.worker import ReplicaReady, SchedulerState, ToScheduler

MAX_SILENCE_S = 1.0


class Phase(Enum):
    LOADING = "is loading the model"
    READY = "is ready"
    LOST = "is lost"


class Replica:
    """A scheduler process and its workers; `number` is never used twice."""

    def __init__(
        self, number: int, members: tuple[bytes, ...], send: Callable[[ToScheduler], None]
    ) -> None:
        self.number = number
        self.members = members
        self.send = send
        self.phase = Phase.LOADING
        self.facts: ReplicaReady | None = None
        self.state: SchedulerState | None = None
        self.heard_at = 0.0
        self.num_live = 0
        """Slots that the front has sent it and not yet seen the end of."""

    def is_silent(self, now: float) -> bool:
        """Return whether its scheduler, or a worker of it, said nothing for a while: it may die."""
        worker_s = self.state.worker_age_s if self.state is not None else 0.0
        return now - self.heard_at + worker_s >= MAX_SILENCE_S

    def troubles(self, now: float, step_budget_s: float) -> list[str]:
        """Return why no request should count on this replica; empty = it makes progress."""
        name, state = f"replica {self.number}", self.state
        if self.phase is not Phase.READY or state is None:
            return [f"{name} {self.phase.value}"]
        silence_s = now - self.heard_at
        step_s = state.step_age_s + silence_s if state.step_age_s else 0.0
        worker_s = state.worker_age_s + silence_s
        found = []
        if silence_s >= MAX_SILENCE_S:
            found.append(f"{name}: its scheduler has been silent for {silence_s:.1f} s")
        elif worker_s >= MAX_SILENCE_S:
            found.append(f"{name}: its worker has been silent for {worker_s:.1f} s")
        if step_s > step_budget_s:
            found.append(f"{name}: a step has been running for {step_s:.1f} s")
        if state.leaks:
            found.append(f"{name}: its ledger is wrong: {state.leaks}")
        return found


class Fleet:
    """All replicas by number, and whether workers wait for partners."""

    def __init__(self, step_budget_s: float, clock: Callable[[], float]) -> None:
        self.replicas: dict[int, Replica] = {}
        self.lone_workers = ""
        """Why workers that are here make no replica; empty when there are none."""
        self.clock = clock
        self._step_budget_s = step_budget_s

    def ready(self) -> list[Replica]:
        """Return the replicas that have come up, healthy or not."""
        return [r for r in list(self.replicas.values()) if r.phase is Phase.READY]

    def healthy(self) -> list[Replica]:
        """Return the replicas that make progress."""
        now = self.clock()
        return [r for r in self.ready() if not r.troubles(now, self._step_budget_s)]

    def pick(self) -> Replica | None:
        """Return the least loaded replica, a healthy one if any; None when none is up and speaks.

        One that is silent may be lost with all it has got: better to wait for it than in it.
        """
        now = self.clock()
        candidates = self.healthy() or [r for r in self.ready() if not r.is_silent(now)]
        return min(candidates, key=lambda replica: replica.num_live, default=None)

    def reasons(self) -> list[str]:
        """Return why requests would have to wait; empty when one replica makes progress."""
        if self.healthy():
            return []
        now = self.clock()
        found = [
            why
            for replica in list(self.replicas.values())
            for why in replica.troubles(now, self._step_budget_s)
        ]
        if self.lone_workers:
            found.append(self.lone_workers)
        return found or ["no worker has registered"]

    def report(self, engine: str, num_held: int, reasons: list[str]) -> EngineState:
        """Return what the tiers above are told of this engine; `reasons`: why it is not ready."""
        up = [(r.facts, r.state) for r in self.ready() if r.facts is not None and r.state]
        state = engine_state(engine, up, reasons)
        state.num_waiting += num_held
        return state


def engine_state(
    engine: str, replicas: Sequence[tuple[ReplicaReady, SchedulerState]], reasons: Sequence[str]
) -> EngineState:
    """Return what replicas that are up make together; without `reasons` why not, it is ready."""
    known, states = [one for one, _ in replicas], [state for _, state in replicas]
    num_blocks = sum(state.num_blocks for state in states)
    num_used = sum(state.num_blocks - state.num_free_blocks for state in states)
    facts = known[0].facts if known else None
    return EngineState(
        engine=engine,
        ready=not reasons,
        reasons=reasons,
        num_waiting=sum(state.num_waiting for state in states),
        num_running=sum(state.num_running for state in states),
        kv_usage=num_used / num_blocks if num_blocks else 0.0,
        num_blocks=num_blocks,
        block_size=facts.block_size if facts else 0,
        max_model_len=min((one.max_model_len for one in known), default=0),
        vocab_size=facts.vocab_size if facts else 0,
        fingerprint="+".join(sorted({fingerprint(one) for one in known})),
        num_replicas=len(replicas),
        model_hash=facts.model_hash if facts else "",
    )


def fingerprint(replica: ReplicaReady) -> str:
    """Return what exact twins have in common: numerics, and where a context is full (`n_keep`)."""
    return f"{replica.facts.fingerprint} context={replica.max_model_len}"
