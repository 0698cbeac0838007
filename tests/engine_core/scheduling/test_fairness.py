"""A flood of one tenant on a virtual clock: what it does to the wait of another, and what not."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest

from engine_core.scheduling import fairness, planning, prefix_cache
from engine_core.scheduling.bounds import Bounds, TenantLimits
from engine_core.scheduling.fairness import Deficits, Standing, standing
from engine_core.scheduling.policy import must_wait_for_prompt
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.sequence import Sequence
from protos.worker import Add, ExecutePlan, Limits, SequenceStart, SequenceStep, StepResult

STEP_S, DURATION_S, DEPTH = 0.03, 40.0, 2
SEATS, BUDGET, BLOCK_SIZE = 32, 512, 16
LONG = (400, 300)
"""Prompt and output tokens."""
SHORT = (20, 8)


@dataclass
class Tenant:
    """Keeps `num_live` requests alive, or sends one every `interval_s`."""

    name: str
    size: tuple[int, int]
    num_live: int = 0
    interval_s: float = 0.0
    num_sent: int = 0
    waits_s: list[float] = field(default_factory=list)

    def due(self, now: float, live: int) -> int:
        if self.interval_s:
            return int(now / self.interval_s) - self.num_sent
        return self.num_live - live


class Mill:
    """A scheduler before a worker whose steps all take STEP_S, with DEPTH plans under way."""

    def __init__(self, num_blocks: int, *tenants: Tenant) -> None:
        self.scheduler = Scheduler(
            num_blocks=num_blocks, block_size=BLOCK_SIZE, vocab_size=1000, max_model_len=1024,
            bounds=Bounds(SEATS, BUDGET, 1000), prefix_key=b"m",
        )  # fmt: skip
        self.tenants = tenants
        self.arrivals: dict[int, tuple[Tenant, float]] = {}
        self.live: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.known: dict[int, int] = {}
        self.next_slot = 1

    def run(self) -> None:
        now = free_at = 0.0
        under_way: deque[tuple[StepResult, float]] = deque()
        while now < DURATION_S:
            self.send(now)
            while len(under_way) < DEPTH and (plan := self.scheduler.schedule(now)):
                free_at = max(free_at, now) + STEP_S
                under_way.append((self.answer(plan), free_at))
            if not under_way:
                now += STEP_S
                continue
            result, now = under_way.popleft()
            self.apply(result, now)
        assert self.scheduler.check() == ""

    def send(self, now: float) -> None:
        for tenant in self.tenants:
            for _ in range(tenant.due(now, self.live[tenant.name])):
                tenant.num_sent += 1
                self.live[tenant.name] += 1
                asked = tenant.num_sent * tenant.interval_s or now
                slot, self.next_slot = self.next_slot, self.next_slot + 1
                self.arrivals[slot] = (tenant, asked)
                length, max_tokens = tenant.size
                prompt = array("I", [(slot * 7 + i) % 997 for i in range(length)]).tobytes()
                limits = Limits(max_tokens, tenant=tenant.name)
                self.scheduler.add(Add(1, slot, "r", prompt, limits, b""), now)

    def answer(self, plan: ExecutePlan) -> StepResult:
        for start in plan.starts:
            self.known[start.seq_id] = len(start.token_ids) // 4 - start.num_computed
        rows: tuple[SequenceStart | SequenceStep, ...] = (*plan.starts, *plan.steps)
        for row in rows:
            self.known[row.seq_id] -= row.num_tokens
        ends = [row.seq_id for row in rows if not self.known[row.seq_id]]
        self.known |= dict.fromkeys(ends, 1)
        return StepResult(plan.step_id, tuple(ends), (1,) * len(ends), (5,) * len(ends))

    def apply(self, result: StepResult, now: float) -> None:
        for event in self.scheduler.apply(result, now):
            tenant, asked = self.arrivals[event.slot]
            self.tokens[tenant.name] += len(event.token_ids)
            if event.token_ids and event.offset == 0:
                tenant.waits_s.append(now - asked)
            if event.finish is not None:
                self.live[tenant.name] -= 1


def p95(waits_s: list[float]) -> float:
    return sorted(waits_s)[int(0.95 * len(waits_s))]


@pytest.mark.parametrize("num_blocks", [4000, 700], ids=["seats are short", "blocks are short"])
def test_a_flood_does_not_double_the_wait_of_another_tenant(num_blocks: int) -> None:
    """The quiet twin has the same batch: as many long rows as run beside b, and none that wait."""
    alone = Mill(num_blocks, Tenant("a", LONG, num_live=64))
    alone.run()
    num_beside = min(SEATS, num_blocks // 44) - 1
    quiet, light = Tenant("a", LONG, num_live=num_beside), Tenant("b", SHORT, interval_s=1.01)
    Mill(4000, quiet, light).run()
    flood, flooded = Tenant("a", LONG, num_live=64), Tenant("b", SHORT, interval_s=1.01)
    mill = Mill(num_blocks, flood, flooded)
    mill.run()
    assert len(flooded.waits_s) >= 0.95 * DURATION_S / 1.01
    assert p95(flooded.waits_s) <= 2 * p95(light.waits_s)
    assert mill.tokens["a"] >= 0.85 * alone.tokens["a"], "what b does not need is a's"


def test_two_floods_get_the_same() -> None:
    mill = Mill(700, Tenant("a", LONG, num_live=64), Tenant("b", (100, 100), num_live=200))
    mill.run()
    served = mill.tokens["a"] / mill.tokens["b"]
    assert 0.6 < served < 1.7


def test_credit_and_debt_are_bounded_and_forgotten() -> None:
    deficits = Deficits(100)
    for _ in range(10):
        deficits.charge("a", 50)
        deficits.share_out(["a", "b"])
    assert (deficits.of("a"), deficits.of("b")) == (-100, 100)
    assert deficits.of("newcomer") == 101
    deficits.share_out(["b"])
    deficits.share_out(["a", "b"])
    assert deficits.of("a") == 100, "who was away begins like a newcomer"


def test_a_queue_at_its_limit_is_passed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at each of its rows would make a flood a cost of every step."""
    bounds = Bounds(SEATS, BUDGET, 1000, tenants={"flood": TenantLimits(seqs=1)})
    scheduler = Scheduler(
        num_blocks=900, block_size=BLOCK_SIZE, vocab_size=1000, max_model_len=1024,
        bounds=bounds, prefix_key=b"m",
    )  # fmt: skip
    prompt = array("I", [5] * 20).tobytes()
    for slot in range(500):
        tenant = "flood" if slot < 499 else "calm"
        limits = Limits(max_tokens=9, tenant=tenant)
        scheduler.add(Add(1, slot, str(slot), prompt, limits, b""), 0.0)
    looked: list[str] = []
    of = Bounds.of
    monkeypatch.setattr(
        Bounds, "of", lambda self, tenant: looked.append(tenant) or of(self, tenant)
    )
    plan = scheduler.schedule(0.0)
    assert plan is not None and [start.seq_id for start in plan.starts] == [1, 500]
    assert len(looked) < 20


def test_tenants_at_their_limits_are_passed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, each after a look at all others, a step of 200 tenants took 30 to 50 ms."""
    num_tenants = 100
    scheduler = Scheduler(
        num_blocks=900, block_size=BLOCK_SIZE, vocab_size=1000, max_model_len=1024,
        bounds=Bounds(200, BUDGET, 1000, tenants={"*": TenantLimits(seqs=1)}), prefix_key=b"m",
    )  # fmt: skip
    mill = Mill(1)
    for slot in range(2 * num_tenants):
        limits = Limits(max_tokens=9, tenant=f"t{slot % num_tenants}")
        prompt = array("I", [slot + 1, 2]).tobytes()
        scheduler.add(Add(1, slot, str(slot), prompt, limits, b""), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None and len(plan.starts) == num_tenants
    scheduler.apply(mill.answer(plan), 0.0)
    compared = 0

    def counting(*args: Any) -> Standing:
        nonlocal compared
        compared += 1
        return standing(*args)

    monkeypatch.setattr(fairness, "standing", counting)
    plan = scheduler.schedule(0.0)
    assert plan is not None and len(plan.steps) == num_tenants and not plan.starts
    assert compared <= 4 * num_tenants


@pytest.mark.parametrize(("layout", "block_size", "most"), [("slot", 1, 192), ("block", 16, 12)])
def test_rows_beside_each_other_never_hold_more_than_their_tenant_may(
    layout: str, block_size: int, most: int
) -> None:
    mill = Mill(1)
    mill.scheduler = scheduler = Scheduler(
        num_blocks=4096 // block_size, block_size=block_size, vocab_size=100, max_model_len=400,
        bounds=Bounds(8, 256, 100, tenants={"a": TenantLimits(blocks=most)}), prefix_key=b"m",
        layout=layout,
    )  # fmt: skip
    for slot in range(4):
        prompt = array("I", [slot + 1] * 40).tobytes()
        scheduler.add(Add(1, slot, "r", prompt, Limits(100, tenant="a"), b""), 0.0)
    held: dict[int, int] = {}
    most_held = 0
    while (plan := scheduler.schedule(0.0)) is not None:
        for seq_id in plan.finished:
            held.pop(seq_id, None)
        for start in plan.starts:
            held[start.seq_id] = len(start.block_ids)
        for step in plan.steps:
            held[step.seq_id] += len(step.new_block_ids)
        if len(held) > 1:
            most_held = max(most_held, sum(held.values()))
        scheduler.apply(mill.answer(plan), 0.0)
    assert most // 2 < most_held <= most


@pytest.mark.parametrize("own", [TenantLimits(new_tokens=9), TenantLimits(context=13)])
def test_a_length_that_nobody_asked_for_is_cut_to_the_tenants(own: TenantLimits) -> None:
    """As that of a folder's generation_config.json, which is shorter than the context."""
    mill = Mill(1)
    mill.scheduler = scheduler = Scheduler(
        num_blocks=40, block_size=BLOCK_SIZE, vocab_size=1000, max_model_len=256,
        bounds=Bounds(8, 256, 100, tenants={"a": own}), prefix_key=b"m",
    )  # fmt: skip
    prompt = array("I", range(1, 5)).tobytes()
    scheduler.add(Add(1, 1, "r", prompt, Limits(100, tenant="a"), b""), 0.0)
    scheduler.add(Add(1, 2, "r", prompt, Limits(100, tenant="a", max_is_ours=True), b""), 0.0)
    drawn: list[int] = []
    while (plan := scheduler.schedule(0.0)) is not None:
        drawn += [start.seq_id for start in plan.starts] + [step.seq_id for step in plan.steps]
        scheduler.apply(mill.answer(plan), 0.0)
    assert len(drawn) == 9 and len(set(drawn)) == 1, "the first was refused"


def test_what_is_under_way_is_told_from_what_waits() -> None:
    """A loss is counted against those alone that were being computed."""
    scheduler = Scheduler(
        num_blocks=40, block_size=BLOCK_SIZE, vocab_size=1000, max_model_len=256,
        bounds=Bounds(1, BUDGET, 100), prefix_key=b"m",
    )  # fmt: skip
    prompt = array("I", [5] * 20).tobytes()
    for slot in (7, 8):
        scheduler.add(Add(3, slot, "r", prompt, Limits(4), b""), 0.0)
    assert scheduler.under_way() == ()
    assert scheduler.schedule(0.0) is not None
    assert scheduler.under_way() == ((3, 7),)


def test_choices_that_wait_for_their_prompt_are_passed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by one, a step took 90 ms beside eight requests for 128 choices of 20,000 tokens."""
    mill = Mill(400)
    scheduler = mill.scheduler
    prompt = array("I", range(960)).tobytes()
    scheduler.add(Add(1, 0, "r", prompt, Limits(9, n=64), b""), 0.0)
    asked = hashed = 0

    def counting(sequence: Sequence) -> bool:
        nonlocal asked
        asked += 1
        return must_wait_for_prompt(sequence)

    def hashing(data: bytes = b"") -> Any:
        nonlocal hashed
        hashed += len(data) > 4 * BLOCK_SIZE
        return sha256(data)

    monkeypatch.setattr(planning, "must_wait_for_prompt", counting)
    monkeypatch.setattr(prefix_cache, "sha256", hashing)
    for num_starts in (1, 0, SEATS - 1):
        assert asked <= 2, "while the first computes the prompt"
        plan = scheduler.schedule(0.0)
        assert plan is not None and len(plan.starts) == num_starts
        scheduler.apply(mill.answer(plan), 0.0)
        assert scheduler.check() == ""
    assert hashed <= len(prompt) // 4 // BLOCK_SIZE + SEATS
