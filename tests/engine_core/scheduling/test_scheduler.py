"""Random lives of requests: whatever happens, each ends once, with an undisturbed run's tokens."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine_core.scheduling.bounds import Bounds, TenantLimits
from engine_core.scheduling.request import FinishReason
from engine_core.scheduling.scheduler import Scheduler, SlotInUse
from engine_core.scheduling.sequence import TokenEvent
from engine_core.scheduling.speculation import Proposer
from protos.worker import Add, Bulk, ErrandDone, Finished, Limits, StepResult
from tests.engine_core.scheduling.checking_worker import CheckingWorker, embedding, undisturbed
from tests.engine_core.scheduling.proposers import some_right

BYTE = st.integers(0, 15)
FRESH = st.integers(1, 41).flatmap(lambda n: st.lists(BYTE, min_size=n, max_size=n))
COMMON = st.tuples(st.integers(0, 1), st.integers(1, 30), st.lists(BYTE, max_size=9)).map(
    lambda parts: [5 * parts[0] + i % 11 for i in range(parts[1])] + parts[2]
)
PROMPTS = FRESH | COMMON
"""Random ones, and ones that begin as others did."""
NUM_TOKENS, MAX_MODEL_LEN, BUDGET, SEATS = 48, 40, 9, 5
BLOCK_SIZES = {"block": 4, "slot": 1, "static": 4}


def new_scheduler(
    max_waiting: int = 6,
    layout: str = "block",
    propose: Proposer | None = None,
    num_tokens: int = NUM_TOKENS,
    host_blocks: int = 0,
    tenants: Mapping[str, TenantLimits] = {},
) -> Scheduler:
    block_size = BLOCK_SIZES[layout]
    return Scheduler(
        num_blocks=num_tokens // block_size, block_size=block_size, vocab_size=100,
        max_model_len=MAX_MODEL_LEN,
        bounds=Bounds(SEATS, BUDGET, max_waiting, tenants, host_blocks), prefix_key=b"m",
        layout=layout, propose=propose,
    )  # fmt: skip


@dataclass
class Life:
    """What a slot was promised and what it has got."""

    expected: list[int]
    got: list[int]
    is_disturbed: bool = False
    ends: list[Finished] = field(default_factory=list)
    embedding: bytes = b""
    """What is to come, b"" when it has come or is not asked for."""
    prompt: list[int] = field(default_factory=list)
    """Of which the logprobs are asked for."""
    told: list[int] = field(default_factory=list)
    """The tokens of the prompt whose logprobs have come."""

    def take_bulk(self, bulk: Bulk) -> None:
        if bulk.embedding:
            assert bulk.embedding == self.embedding
            self.embedding = b""
        for row in bulk.prompt_logprobs:
            assert row.index == len(self.told) + 1
            self.told += row.token_ids

    def is_complete(self) -> bool:
        return self.got == self.expected and self.told == self.prompt[1:] and not self.embedding


class Lives(RuleBasedStateMachine):
    layout = "block"
    num_tokens = NUM_TOKENS
    propose: Proposer | None = None
    host_blocks = 0
    tenants: Mapping[str, TenantLimits] = {}

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = new_scheduler(
            6, self.layout, self.propose, self.num_tokens, self.host_blocks, self.tenants
        )
        self.worker = CheckingWorker(BLOCK_SIZES[self.layout], SEATS, BUDGET)
        self.worker.host_blocks = self.host_blocks
        self.results: deque[StepResult] = deque()
        self.lives: dict[tuple[int, int], Life] = {}
        self.paused = set[tuple[int, int]]()
        self.next_slot = 0
        self.now = 0.0
        self.is_idle = True
        self.answers: list[ErrandDone] = []

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 40) | st.just(95),
        stop_ids=st.sets(BYTE, max_size=2),
        n=st.sampled_from([1, 1, 2, 3]),
        resumed=st.integers(0, 5) | st.sampled_from([30, 70]),
        extra=st.tuples(
            st.integers(0, 2),
            st.integers(0, 1),
            st.sampled_from([0] * 12 + [1, 2, 3]),
            st.sampled_from(["", "", "", "prompt_logprobs", "score", "last", "mean"]),
        ),
        deadline_s=st.sampled_from([None, None, None, 0, 5, 30]),
        slot_tenant=st.sampled_from([0, 0, 1, 2]),
        grammar=st.sampled_from([b""] * 6 + [b"good", b"good", b"bad"]),
        n_keep=st.sampled_from([None, None, 0, 3, 20, 99]),
        is_turned=st.booleans(),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        stop_ids: set[int],
        n: int,
        resumed: int,
        extra: tuple[int, int, int, str],
        deadline_s: int | None,
        slot_tenant: int,
        grammar: bytes,
        n_keep: int | None,
        is_turned: bool,
    ) -> None:
        priority, session, attempt, special = extra
        if special in ("last", "mean"):
            self.embed(prompt, special, session, attempt)
            return
        if special == "score":
            self.score(prompt, n, session, attempt)
            return
        min_tokens = min(priority, max_tokens)
        tenant = "abc"[slot_tenant]
        n_keep = None if grammar else n_keep
        limits = Limits(
            max_tokens, min_tokens, tuple(stop_ids), n, None, priority, tenant,
            deadline_s=deadline_s, has_grammar=grammar != b"", n_keep=n_keep,
            rotate_kv=self.layout == "slot" and n_keep is not None and is_turned,
            prompt_logprobs=0 if special == "prompt_logprobs" else None,
        )  # fmt: skip
        shift = None if n_keep is None else (n_keep, MAX_MODEL_LEN)
        total = len(prompt) + max_tokens
        total = min(total, MAX_MODEL_LEN) if shift is None else total
        least = 0 if grammar else min_tokens  # a grammar's end comes when it is complete
        outputs = [undisturbed(prompt, i, total, stop_ids, least, shift) for i in range(n)]
        columns = tuple(array("I", output[:resumed]).tobytes() for output in outputs)
        slot, self.next_slot = self.next_slot, self.next_slot + n
        for i, output in enumerate(outputs):
            life = Life(output, output[:resumed], deadline_s is not None or attempt == 3)
            if limits.prompt_logprobs is not None and i == 0 and not life.got:
                life.prompt = prompt
            self.lives[session, slot + i] = life
        known = columns if resumed else ()
        body = array("I", prompt).tobytes()
        self.scheduler.add(Add(session, slot, "r", body, limits, grammar, known, attempt), self.now)
        self.take(self.scheduler.take_events())

    def embed(self, prompt: list[int], pooling: str, session: int, attempt: int) -> None:
        slot, self.next_slot = self.next_slot, self.next_slot + 1
        life = self.lives[session, slot] = Life([], [], attempt == 3)
        life.embedding = embedding(prompt)
        limits = Limits(1, kind="embed", pooling=pooling)
        body = array("I", prompt).tobytes()
        self.scheduler.add(Add(session, slot, "r", body, limits, b"", (), attempt), self.now)
        self.take(self.scheduler.take_events())

    def score(self, prompt: list[int], n: int, session: int, attempt: int) -> None:
        slot, self.next_slot = self.next_slot, self.next_slot + n
        for i in range(n):
            life = self.lives[session, slot + i] = Life([], [], attempt == 3)
            life.prompt = [] if i else prompt
        limits = Limits(1, n=n, kind="score", prompt_logprobs=0)
        body = array("I", prompt).tobytes()
        self.scheduler.add(Add(session, slot, "r", body, limits, b"", (), attempt), self.now)
        self.take(self.scheduler.take_events())

    @rule(session=st.integers(0, 1), back=st.integers(0, 8))
    def abort(self, session: int, back: int) -> None:
        self.disturb(session, self.next_slot - back)
        self.scheduler.abort(session, self.next_slot - back, self.now)
        self.take(self.scheduler.take_events())

    @rule(session=st.integers(0, 1), back=st.integers(0, 8), count=st.integers(0, 3))
    def stop_at(self, session: int, back: int, count: int) -> None:
        self.disturb(session, self.next_slot - back)
        self.scheduler.stop_at(session, self.next_slot - back, count, self.now)
        self.take(self.scheduler.take_events())

    @rule(session=st.integers(0, 1), back=st.integers(0, 8))
    def pause(self, session: int, back: int) -> None:
        self.paused.add((session, self.next_slot - back))
        self.scheduler.pause(session, self.next_slot - back, self.now)

    @rule()
    def resume(self) -> None:
        for session, slot in self.paused:
            self.scheduler.resume(session, slot)
        self.paused.clear()

    @rule(session=st.integers(0, 2))
    def close_session(self, session: int) -> None:
        for owner, slot in self.lives:
            if owner == session:
                self.disturb(owner, slot)
        self.scheduler.close_session(session, self.now)
        self.take(self.scheduler.take_events())

    @rule(seconds=st.integers(1, 9))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        """As in the middle of a step that is long."""
        self.scheduler.expire(self.now)
        self.take(self.scheduler.take_events())

    @rule()
    def reset_cache(self) -> None:
        self.scheduler.reset_cache()

    @rule(prompt=PROMPTS, n=st.integers(1, 3))
    def ask(self, prompt: list[int], n: int) -> None:
        """What is only asked changes nothing."""
        body = array("I", prompt).tobytes()
        self.scheduler.inspection.explain(Add(0, 0, "r", body, Limits(9, n=n), b""), self.now, True)
        for tenant in "abc":
            self.scheduler.inspection.request("r", tenant, self.now)

    @rule(ahead=st.integers(0, 1), count=st.integers(1, 9))
    def run_steps(self, ahead: int, count: int) -> None:
        """A stretch of undisturbed steps, with one or two plans in flight."""
        for _ in range(count):
            while len(self.results) <= ahead:
                self.plan(fault=-1)
                if len(self.results) == 0 or self.is_idle:
                    break
            if self.results:
                self.apply()

    @precondition(lambda self: len(self.results) < 2)
    @rule(fault=st.integers(0, 40))
    def plan(self, fault: int) -> None:
        plan = self.scheduler.schedule(self.now)
        self.run_errands()
        self.take(self.scheduler.take_events())
        self.is_idle = plan is None
        if plan is None:
            return
        named = (*plan.starts, *plan.steps)
        faulty = frozenset(row.seq_id for row in named if row.seq_id % 41 == fault)
        self.results.append(self.worker.execute(plan, faulty))

    def run_errands(self) -> None:
        for errand in self.scheduler.take_errands():
            if answer := self.worker.run(errand):
                self.answers.append(answer)

    @precondition(lambda self: self.answers)
    @rule(place=st.integers(0, 9))
    def answer(self, place: int) -> None:
        """In any order: some errands run in threads."""
        answer = self.answers.pop(place % len(self.answers))
        self.scheduler.errand_done(answer, self.now)
        self.take(self.scheduler.take_events())

    @precondition(lambda self: self.results)
    @rule()
    def apply(self) -> None:
        result = self.results.popleft()
        self.worker.applied(result.step_id)
        self.take(self.scheduler.apply(result, self.now))

    @invariant()
    def books_are_true(self) -> None:
        assert self.scheduler.check() == ""

    def disturb(self, session: int, slot: int) -> None:
        if life := self.lives.get((session, slot)):
            life.is_disturbed = True

    def take(self, events: list[TokenEvent]) -> None:
        for event in events:
            life = self.lives[event.session, event.slot]
            assert not life.ends, "something after the end"
            assert event.offset == len(life.got) or not event.token_ids
            life.got += event.token_ids
            for bulk in event.bulks:
                assert bulk.key == event.slot
                life.take_bulk(bulk)
            assert life.got == life.expected[: len(life.got)]
            if event.finish is not None:
                life.ends.append(event.finish)

    def teardown(self) -> None:
        self.resume()
        for _ in range(2000):
            while self.answers:
                self.answer(0)
            if len(self.results) < 2:
                self.plan(fault=-1)
            if self.results:
                self.apply()
            elif not self.answers:
                break
        assert self.scheduler.num_errands == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.pool.num_available == self.scheduler.pool.num_blocks
        assert self.scheduler.check() == ""
        tally = self.scheduler.tally
        assert tally.num_prefill_tokens + tally.num_decode_tokens == self.worker.num_computed
        for life in self.lives.values():
            (end,) = life.ends
            whole = end.reason in (FinishReason.STOPPED, FinishReason.LENGTH)
            refused = end.reason in (FinishReason.IGNORED, FinishReason.ERROR)
            assert whole or refused or life.is_disturbed
            if whole and not life.is_disturbed:
                assert life.is_complete()
                assert end.num_output_tokens == len(life.expected)


class SlotLives(Lives):
    layout = "slot"


class RoomySlotLives(Lives):
    """So much room that choices share cells which are then to be turned."""

    layout = "slot"
    num_tokens = 4 * NUM_TOKENS


class StaticLives(Lives):
    layout = "static"


class GuessedLives(Lives):
    """The same with guesses, some of them right for the first choice."""

    propose = staticmethod(some_right)


class HostLives(Lives):
    """The same with a host memory of a few blocks, which loses some."""

    host_blocks = 10

    @rule()
    def evict(self) -> None:
        """Pages make way sooner than they must."""
        self.scheduler._roster.cache.evict(NUM_TOKENS)

    @rule(prompt=COMMON, places=st.sets(st.integers(0, 9)), count=st.integers(1, 9))
    def ask_again(self, prompt: list[int], places: set[int], count: int) -> None:
        for _ in range(2):
            self.add(prompt, 2, set(), 1, 0, (0, 0, 0, ""), None, 0, b"", None, False)
            self.run_steps(0, count)
            self.evict()
            self.lose(places)

    @rule(count=st.integers(0, 9))
    def store_few(self, count: int) -> None:
        """The next blocks that make way are not all stored."""
        self.worker.most_stored = count

    @rule(places=st.sets(st.integers(0, 9), min_size=1))
    def lose(self, places: set[int]) -> None:
        for place, key in enumerate(list(self.worker.host)):
            if place in places:
                del self.worker.host[key]


class LimitedLives(HostLives):
    """Guesses and host memory together, under bounds that cut no output."""

    propose = staticmethod(some_right)
    tenants = {
        "a": TenantLimits(seqs=1),
        "b": TenantLimits(blocks=MAX_MODEL_LEN // BLOCK_SIZES["block"], priority=1),
        "c": TenantLimits(waiting=3, seqs=2),
    }


NUM_LIVES = {
    Lives: 100,
    SlotLives: 50,
    RoomySlotLives: 20,
    StaticLives: 20,
    GuessedLives: 50,
    HostLives: 60,
    LimitedLives: 50,
}


def live(lives: type[Lives], max_examples: int) -> None:
    few = settings(max_examples=max_examples, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(lives, settings=few)


@pytest.mark.parametrize("lives", NUM_LIVES, ids=lambda lives: lives.__name__)
def test_lives(lives: type[Lives]) -> None:
    live(lives, NUM_LIVES[lives])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lives", NUM_LIVES, ids=lambda lives: lives.__name__)
def test_thousands_of_lives(lives: type[Lives]) -> None:
    live(lives, 2000)


def add(slot: int, **limits: int) -> Add:
    return Add(1, slot, "r", array("I", [1, 2, 3]).tobytes(), Limits(9, **limits), b"")


def test_a_live_slot_cannot_be_added_again() -> None:
    scheduler = new_scheduler()
    scheduler.add(add(1), 0.0)
    with pytest.raises(SlotInUse, match=r"session 1: slots \[1\]"):
        scheduler.add(add(0, n=2), 0.0)
    assert scheduler.num_waiting == 1
    assert scheduler.take_events() == []


def test_retry_after_grows_with_the_queue_and_the_time_a_request_takes() -> None:
    scheduler = new_scheduler()
    for slot in range(6):
        scheduler.add(add(slot), 0.0)
    scheduler.abort(1, 0, 10.0)
    scheduler.abort(1, 1, 13.0)
    for slot in range(6, 9):
        scheduler.add(add(slot), 13.0)
    (event,) = scheduler.take_events()[2:]
    assert event.finish is not None
    assert event.finish.retry_after_ms == 3000 * 6
