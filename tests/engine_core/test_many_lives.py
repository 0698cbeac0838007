"""Ten thousand requests through the loop, ended at random states: nothing is left behind.

The front asks, aborts, stops and closes sessions before a step and in the middle of one; what
comes out is checked token by token against runs that nobody disturbs.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter, deque
from dataclasses import dataclass

import pytest

from engine_core.loop import EngineLoop
from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.request import FinishReason
from engine_core.scheduling.scheduler import Scheduler
from protos.worker import (
    Abort,
    Add,
    CloseSession,
    DropKeys,
    Errand,
    ErrandDone,
    ExecutePlan,
    Limits,
    Pause,
    Resume,
    StepOutput,
    StepResult,
    StopAt,
    ToFront,
    ToScheduler,
)
from tests.engine_core.scheduling.checking_worker import CheckingWorker, undisturbed

NUM_REQUESTS = {"block": 10_000, "slot": 2_000, "static": 2_000}
BLOCK_SIZES = {"block": 4, "slot": 1, "static": 4}
NUM_TOKENS, MAX_MODEL_LEN, BUDGET, SEATS, MAX_WAITING = 80, 40, 24, 6, 12


@dataclass
class Life:
    expected: list[int]
    is_disturbed: bool = False
    num_tokens: int = 0
    end: int | None = None


class Crowd:
    """A FrontLink that asks and cancels at random, and checks all it hears."""

    def __init__(self, seed: int, num_requests: int) -> None:
        self.random = random.Random(seed)
        self.left = num_requests
        self.next_slot = 0
        self.lives: dict[tuple[int, int], Life] = {}
        self.open: list[tuple[int, int]] = []
        self.paused: list[tuple[int, int]] = []
        self.ends: Counter[FinishReason] = Counter()

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        questions: list[ToScheduler] = []
        while self.left and self.random.random() < 0.6 and len(self.open) < 16:
            questions.append(self._add())
        if self.open and self.random.random() < 0.15:
            questions.append(self._end(*self.random.choice(self.open)))
        if self.open and self.random.random() < 0.05:
            self.paused.append(self.random.choice(self.open))
            questions.append(Pause(*self.paused[-1]))
        if self.paused and (not self.left or self.random.random() < 0.05):
            questions += [Resume(session, slot) for session, slot in self.paused]
            self.paused.clear()
        if self.random.random() < 0.001:
            questions.append(CloseSession(self._close()))
        return questions

    def _add(self) -> Add:
        draw = self.random
        self.left -= 1
        n, session, slot = draw.choice([1, 1, 1, 2, 3]), draw.randrange(3), self.next_slot
        common = [draw.randrange(2)] * draw.randrange(1, 20)
        prompt = common + [draw.randrange(16) for _ in range(draw.randrange(4))]
        max_tokens, stop_ids = draw.randrange(1, 14), {draw.randrange(16)}
        for choice in range(n):
            total = min(len(prompt) + max_tokens, MAX_MODEL_LEN)
            life = Life(undisturbed(prompt, choice, total, stop_ids, 0))
            self.lives[session, slot + choice] = life
            self.open.append((session, slot + choice))
        self.next_slot += n
        tenant = draw.choice(["a", "a", "b"])
        limits = Limits(
            max_tokens, 0, tuple(stop_ids), n, priority=draw.randrange(2), tenant=tenant
        )
        return Add(session, slot, "r", array("I", prompt).tobytes(), limits, b"")

    def _end(self, session: int, slot: int) -> ToScheduler:
        self.lives[session, slot].is_disturbed = True
        if self.random.random() < 0.5:
            return Abort(session, slot)
        return StopAt(session, slot, self.lives[session, slot].num_tokens)

    def _close(self) -> int:
        closing = self.random.randrange(3)
        for session, slot in self.open:
            self.lives[session, slot].is_disturbed |= session == closing
        return closing

    def send(self, message: ToFront) -> None:
        if not isinstance(message, StepOutput):
            return
        for part in message.sessions:
            assert not part.counts, "one token each"
            columns = (array("I", c) for c in (part.slots, part.token_offsets, part.token_ids))
            for slot, offset, token_id in zip(*columns, strict=True):
                life = self.lives[part.session, slot]
                assert life.end is None, "a token after the end"
                assert offset == life.num_tokens and life.expected[offset] == token_id
                life.num_tokens += 1
            for row in part.finishes:
                self._finish(part.session, row.slot, FinishReason(row.reason))

    def _finish(self, session: int, slot: int, reason: FinishReason) -> None:
        life = self.lives[session, slot]
        assert life.end is None, "ended twice"
        life.end = reason
        self.open.remove((session, slot))
        self.ends[reason] += 1
        if not life.is_disturbed and reason is not FinishReason.IGNORED:
            assert reason in (FinishReason.STOPPED, FinishReason.LENGTH)
            assert life.num_tokens == len(life.expected)


class Workers:
    """Computes when collected; the loop is attended to meanwhile, as by a real link."""

    def __init__(self, depth: int, block_size: int, crowd: Crowd) -> None:
        self.depth = depth
        self.model = CheckingWorker(block_size, SEATS, BUDGET)
        self.results: deque[StepResult] = deque()
        self.most_in_flight = 0
        self.attend = lambda: None
        self._random = crowd.random
        self._answers: list[ErrandDone] = []

    def launch(self, plan: ExecutePlan) -> None:
        self.results.append(self.model.execute(plan))
        self.most_in_flight = max(self.most_in_flight, len(self.results))
        assert len(self.results) <= self.depth

    def send(self, errand: Errand | DropKeys) -> None:
        if answer := self.model.run(errand):
            self._answers.append(answer)

    def answers(self) -> list[ErrandDone]:
        """Give one of those that are there, now and then."""
        if not self._answers or self._random.random() < 0.3:
            return []
        return [self._answers.pop(self._random.randrange(len(self._answers)))]

    def wait(self) -> None:
        self.attend()

    def collect(self) -> StepResult:
        if self._random.random() < 0.5:
            self.attend()
        result = self.results.popleft()
        self.model.applied(result.step_id)
        return result


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("layout", NUM_REQUESTS)
def test_nothing_is_left_of_ten_thousand_requests(layout: str, depth: int) -> None:
    crowd, block_size = Crowd(depth, NUM_REQUESTS[layout] // 2), BLOCK_SIZES[layout]
    workers = Workers(depth, block_size, crowd)
    scheduler = Scheduler(
        num_blocks=NUM_TOKENS // block_size, block_size=block_size, vocab_size=100,
        max_model_len=MAX_MODEL_LEN, bounds=Bounds(SEATS, BUDGET, MAX_WAITING), prefix_key=b"m",
        layout=layout,
    )  # fmt: skip
    loop = EngineLoop(scheduler, workers, crowd, lambda: 0.0)
    workers.attend = loop.attend
    num_steps = 0
    while crowd.left or crowd.open:
        loop.step()
        num_steps += 1
        if num_steps % 50 == 0:
            assert scheduler.check() == ""
    loop.step()
    assert scheduler.num_running == scheduler.num_waiting == 0
    assert scheduler.pool.num_available == scheduler.pool.num_blocks
    assert scheduler.check() == ""
    assert scheduler.num_paused == 0 and not crowd.paused
    assert workers.most_in_flight == depth and not workers.results
    assert all(life.end is not None for life in crowd.lives.values())
    hardly = NUM_REQUESTS[layout] // 200
    for reason in ("STOPPED", "LENGTH", "ABORTED", "IGNORED"):
        assert crowd.ends[FinishReason[reason]] > hardly, "a state that was hardly tried"
    assert (scheduler.tally.num_preemptions > hardly) or layout == "static"
    assert (scheduler.tally.num_prefix_hits > 20 * hardly) == (layout != "static")
