"""The loop with both links in the same process, as the offline API has them."""

from __future__ import annotations

from array import array
from collections import deque

import pytest

from engine_core.loop import AUDIT_INTERVAL_S, IDLE_WAIT_S, STATE_INTERVAL_S, EngineLoop
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
    SchedulerState,
    Shutdown,
    StepOutput,
    StepResult,
    StopAt,
    ToFront,
    ToScheduler,
)
from tests.engine_core.scheduling.checking_worker import CheckingWorker, undisturbed


class Front:
    """Asks what it is told to and keeps what it hears."""

    def __init__(self) -> None:
        self.questions: list[ToScheduler] = []
        self.waits: list[float] = []
        self.heard: list[ToFront] = []

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        self.waits.append(timeout_s)
        questions, self.questions = self.questions, []
        return questions

    def send(self, message: ToFront) -> None:
        self.heard.append(message)

    def tokens(self, slot: int) -> list[int]:
        found: list[int] = []
        for output in (m for m in self.heard if isinstance(m, StepOutput)):
            for part in output.sessions:
                pairs = zip(array("I", part.slots), array("I", part.token_ids), strict=True)
                found += [token for owner, token in pairs if owner == slot]
        return found

    def ends(self) -> dict[int, FinishReason]:
        outputs = (m for m in self.heard if isinstance(m, StepOutput))
        rows = [row for output in outputs for part in output.sessions for row in part.finishes]
        assert len({row.slot for row in rows}) == len(rows)
        return {row.slot: FinishReason(row.reason) for row in rows}

    def states(self) -> list[SchedulerState]:
        return [message for message in self.heard if isinstance(message, SchedulerState)]


class Workers:
    """Executes when collected; `meanwhile` happens in the middle of the step."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.model = CheckingWorker(4, 8, 64)
        self.meanwhile = lambda: None
        self.plans: deque[ExecutePlan] = deque()
        self.log: list[str] = []
        self.errands: list[Errand | DropKeys] = []

    def launch(self, plan: ExecutePlan) -> None:
        self.log.append(f"launch {plan.step_id}")
        self.plans.append(plan)

    def collect(self) -> StepResult:
        self.meanwhile()
        plan = self.plans.popleft()
        self.log.append(f"collect {plan.step_id}")
        result = self.model.execute(plan)
        self.model.applied(plan.step_id)
        return result

    def send(self, errand: Errand | DropKeys) -> None:
        self.log.append(f"send {type(errand).__name__}")
        self.errands.append(errand)

    def answers(self) -> list[ErrandDone]:
        done, self.errands = [self.model.run(one) for one in self.errands[:1]], self.errands[1:]
        return [answer for answer in done if answer is not None]

    def wait(self) -> None:
        self.log.append("wait")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self, depth: int) -> None:
        self.front, self.workers, self.clock = Front(), Workers(depth), Clock()
        self.scheduler = Scheduler(
            num_blocks=16, block_size=4, vocab_size=100, max_model_len=64,
            bounds=Bounds(8, 64, 8), prefix_key=b"m",
        )  # fmt: skip
        self.loop = EngineLoop(self.scheduler, self.workers, self.front, self.clock)

    def ask(self, *questions: ToScheduler) -> None:
        self.front.questions += questions
        self.loop.step()


@pytest.fixture(params=[1, 2])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


def add(slot: int, max_tokens: int = 4, deadline_s: float | None = None) -> Add:
    limits = Limits(max_tokens, deadline_s=deadline_s)
    return Add(1, slot, "r", array("I", [1, 2, 3]).tobytes(), limits, b"")


def test_a_grammar_is_compiled_before_the_request_runs(bench: Bench) -> None:
    body, limits = array("I", [1, 2, 3]).tobytes(), Limits(2, has_grammar=True)
    bench.ask(Add(1, 1, "r", body, limits, b"good"), Add(1, 2, "r", body, limits, b"bad"))
    assert bench.workers.log == ["send CompileGrammar", "send CompileGrammar", "wait"]
    assert bench.front.waits == [IDLE_WAIT_S], "nothing was under way"
    for _ in range(4):
        bench.loop.step()
    assert bench.front.waits[1:4] == [0.0] * 3
    assert bench.front.ends() == {1: FinishReason.LENGTH, 2: FinishReason.IGNORED}
    assert bench.scheduler.num_errands == 0


def test_a_request_runs_to_its_end(bench: Bench) -> None:
    bench.ask(add(1))
    for _ in range(4):
        bench.loop.step()
    assert bench.workers.model.next_step_id == 5, "a step for each token, whatever the depth"
    assert bench.front.tokens(1) == undisturbed([1, 2, 3], 0, 7, (), 0)
    assert bench.front.ends() == {1: FinishReason.LENGTH}
    assert bench.scheduler.check() == ""


def test_tokens_are_handed_out_while_the_next_step_is_under_way() -> None:
    bench = Bench(2)
    bench.ask(add(1, max_tokens=4))
    while bench.scheduler.num_running:
        bench.loop.step()
    assert bench.workers.log == [
        "launch 1", "launch 2", "collect 1", "launch 3", "collect 2", "launch 4", "collect 3",
        "collect 4",
    ]  # fmt: skip


def test_it_waits_only_when_there_is_nothing_to_do(bench: Bench) -> None:
    bench.ask(add(1, max_tokens=2))
    for _ in range(3):
        bench.loop.step()
    first, *busy, idle = bench.front.waits
    assert first > 0 and idle > 0 and set(busy) == {0.0}


def test_orders_are_taken_in_the_middle_of_a_step(bench: Bench) -> None:
    bench.ask(add(1), add(2), add(3, deadline_s=5.0))

    def meanwhile() -> None:
        bench.clock.now = 6.0
        bench.front.questions = [Abort(1, 1), StopAt(1, 2, 1)]
        bench.loop.attend()
        assert bench.front.ends() == {
            1: FinishReason.ABORTED, 2: FinishReason.STOPPED, 3: FinishReason.DEADLINE,
        }  # fmt: skip
        assert bench.front.states()[-1].step_age_s == 6.0

    bench.workers.meanwhile = meanwhile
    bench.loop.step()
    bench.workers.meanwhile = lambda: None
    bench.loop.step()
    assert bench.scheduler.num_running == 0
    assert bench.scheduler.pool.num_available == 16


def test_what_breaks_at_admission_breaks_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_on_two(add: Add, now: float) -> None:
        if add.slot == 2:
            raise ZeroDivisionError
        real(add, now)

    real = bench.scheduler.add
    monkeypatch.setattr(bench.scheduler, "add", break_on_two)
    bench.ask(add(1, max_tokens=1), add(2), add(3, max_tokens=1), add(3))
    ends = bench.front.ends()
    assert ends == {
        1: FinishReason.LENGTH, 2: FinishReason.IGNORED, 3: FinishReason.LENGTH,
    }  # fmt: skip


def test_a_session_that_closes_leaves_nothing(bench: Bench) -> None:
    bench.ask(add(1), add(2))
    bench.ask(CloseSession(1))
    assert bench.scheduler.num_running == 0
    assert bench.scheduler.check() == ""


def test_the_ledger_is_audited_and_a_leak_is_told(bench: Bench) -> None:
    bench.ask(add(1))
    bench.scheduler.pool.allocate(99, 1)
    bench.clock.now = AUDIT_INTERVAL_S
    bench.loop.step()
    assert "sequences [99] have a table or should have one" in bench.front.states()[-1].leaks


def test_the_state_is_told_now_and_then_and_not_at_every_step(bench: Bench) -> None:
    bench.ask(add(1, max_tokens=20))
    for now in (0.0, STATE_INTERVAL_S / 2, STATE_INTERVAL_S, STATE_INTERVAL_S):
        bench.clock.now = now
        bench.loop.step()
    assert len(bench.front.states()) == 2


def test_shutdown_ends_the_run(bench: Bench) -> None:
    bench.front.questions = [add(1), Shutdown()]
    bench.loop.run()
    assert bench.loop.is_stopping
