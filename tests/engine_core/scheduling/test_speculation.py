"""Several tokens a step: whatever is guessed, the answer is the same, in more steps or fewer."""

from __future__ import annotations

from array import array
from collections import deque

import pytest

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.prompt_lookup import prompt_lookup
from engine_core.scheduling.request import FinishReason
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.speculation import Proposer
from protos.worker import Add, Limits, Logprobs, SequenceFault, StepResult
from tests.engine_core.scheduling.checking_worker import CheckingWorker, undisturbed
from tests.engine_core.scheduling.proposers import NUM_GUESSES, right, some_right, wrong

BLOCK_SIZE, MAX_MODEL_LEN, SEATS, BUDGET = 4, 64, 6, 24
PROMPTS = [[5] * 30, [1, 2, 3], [4] * 9, [5] * 31, [9, 9], [1, 2, 3, 4]]


class Engine:
    """A scheduler and a worker that looks at every cell it reads."""

    def __init__(
        self, propose: Proposer | None, num_blocks: int = 80, layout: str = "block"
    ) -> None:
        block_size = 1 if layout == "slot" else BLOCK_SIZE
        self.num_blocks = num_blocks * BLOCK_SIZE // block_size
        self.scheduler = Scheduler(
            num_blocks=self.num_blocks, block_size=block_size, vocab_size=100,
            max_model_len=MAX_MODEL_LEN, bounds=Bounds(SEATS, BUDGET, 8), prefix_key=b"m",
            propose=propose, layout=layout,
        )  # fmt: skip
        self.worker = CheckingWorker(block_size, SEATS, BUDGET)

    def ask(self, prompts: list[list[int]], depth: int = 1) -> dict[int, list[int]]:
        """Run `prompts` together, `depth` plans under way; return the tokens by place."""
        scheduler, results = self.scheduler, deque[StepResult]()
        for slot, prompt in enumerate(prompts):
            limits = Limits(20, 2, stop_token_ids=(15,))
            scheduler.add(Add(1, slot, "r", array("I", prompt).tobytes(), limits, b""), 0.0)
        got: dict[int, list[int]] = {slot: [] for slot in range(len(prompts))}
        while True:
            while len(results) < depth and (plan := scheduler.schedule(0.0)):
                results.append(self.worker.execute(plan))
            if not results:
                break
            result = results.popleft()
            self.worker.applied(result.step_id)
            for event in scheduler.apply(result, 0.0):
                assert event.offset == len(got[event.slot])
                got[event.slot] += event.token_ids
            assert scheduler.check() == ""
        assert scheduler.num_running == scheduler.num_waiting == 0
        assert scheduler.pool.num_available == self.num_blocks
        return got


def num_steps(propose: Proposer | None) -> int:
    engine = Engine(propose)
    engine.ask(PROMPTS)
    return engine.worker.next_step_id - 1


EXPECTED = {
    slot: undisturbed(prompt, 0, min(len(prompt) + 20, MAX_MODEL_LEN), (15,), 2)
    for slot, prompt in enumerate(PROMPTS)
}


@pytest.mark.parametrize("layout", ["block", "slot", "static"])
@pytest.mark.parametrize("num_blocks", [16, 80])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("propose", [None, right, wrong, some_right, prompt_lookup(3)])
def test_the_answer_is_the_same(
    propose: Proposer | None, depth: int, num_blocks: int, layout: str
) -> None:
    engine = Engine(propose, num_blocks, layout)
    assert engine.ask(PROMPTS, depth) == EXPECTED
    is_short = num_blocks == 16 and layout != "static"  # where all is reserved at the start
    assert (engine.scheduler.tally.num_preemptions > 0) == is_short


def test_right_guesses_save_steps_and_wrong_ones_cost_none() -> None:
    plain = num_steps(None)
    longest = max(map(len, EXPECTED.values()))
    assert num_steps(wrong) == plain >= longest
    engine = Engine(right)
    engine.ask(PROMPTS)
    tally = engine.scheduler.tally
    assert 0.5 * tally.num_guesses < tally.num_right_guesses <= tally.num_guesses
    assert num_steps(right) <= plain - longest + -(-longest // (1 + NUM_GUESSES)) + 1


@pytest.mark.parametrize("num_blocks", [16, 80])
def test_what_was_guessed_wrong_is_never_found(num_blocks: int) -> None:
    engine = Engine(some_right, num_blocks)
    for _ in range(3):
        answers = engine.ask(PROMPTS, 2)
        longer = [prompt + answers[slot] for slot, prompt in enumerate(PROMPTS)]
        engine.ask([prompt for prompt in longer if len(prompt) < MAX_MODEL_LEN], 2)
    assert engine.scheduler.tally.num_prefix_hits > 0


def test_a_wrong_guess_in_flight_at_a_pause_is_not_found_later() -> None:
    engine = Engine(wrong)
    limits = Limits(20, 2, stop_token_ids=(15,))
    engine.scheduler.add(Add(1, 1, "r", array("I", [1, 2]).tobytes(), limits, b""), 0.0)
    said: list[int] = []
    for pause in (False, True):  # after the second step four tokens are known: a whole block
        plan = engine.scheduler.schedule(0.0)
        assert plan is not None
        result = engine.worker.execute(plan)
        if pause:
            engine.scheduler.pause(1, 1, 0.0)
        engine.worker.applied(result.step_id)
        said += [t for event in engine.scheduler.apply(result, 0.0) for t in event.token_ids]
    engine.scheduler.abort(1, 1, 0.0)
    engine.scheduler.take_events()
    prompt = [1, 2, *said, 7]
    assert len(prompt) == BLOCK_SIZE + 1
    assert engine.ask([prompt])[0] == undisturbed(prompt, 0, len(prompt) + 20, (15,), 2)


def guessing(count: int) -> tuple[Scheduler, StepResult]:
    """Return a scheduler with 1 + 3 tokens of slot 7 planned, and a result with `count` tokens."""
    scheduler = Scheduler(
        num_blocks=8, block_size=BLOCK_SIZE, vocab_size=100, max_model_len=MAX_MODEL_LEN,
        bounds=Bounds(SEATS, BUDGET, 8), prefix_key=b"m", propose=wrong,
    )  # fmt: skip
    limits = Limits(9, stop_token_ids=(15,), logprobs=0)
    scheduler.add(Add(1, 7, "r", array("I", [1, 2]).tobytes(), limits, b""), 0.0)
    assert scheduler.schedule(0.0) is not None
    scheduler.apply(StepResult(1, (1,), (1,), (3,)), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.steps[0].draft_token_ids == (16, 16, 16)
    assert scheduler.schedule(0.0) is None, "not planned again while guesses are in flight"
    tokens = (4, 15, 6, 7, 8)[:count]
    logprobs = tuple(Logprobs(1, 1 + i, (token,), (-1.0,)) for i, token in enumerate(tokens))
    return scheduler, StepResult(2, (1,), (count,), tokens, logprobs)


def test_tokens_behind_the_end_are_dropped() -> None:
    scheduler, result = guessing(4)
    (event,) = scheduler.apply(result, 0.0)
    assert (event.offset, event.token_ids) == (1, (4, 15))
    assert event.finish is not None and event.finish.reason == FinishReason.STOPPED
    assert [row.index for row in event.logprobs] == [1, 2]
    assert scheduler.pool.num_available == 8


def test_more_tokens_than_were_guessed_end_the_row() -> None:
    scheduler, result = guessing(5)
    (event,) = scheduler.apply(result, 0.0)
    assert event.finish is not None and event.finish.reason == FinishReason.ERROR
    assert event.finish.error_message == "the worker returned 5 tokens, not 1 to 4"
    assert scheduler.check() == "" and scheduler.pool.num_available == 8


def test_a_fault_among_guesses_ends_its_row() -> None:
    scheduler, _ = guessing(1)
    (event,) = scheduler.apply(StepResult(2, faults=(SequenceFault(1, "bad row"),)), 0.0)
    assert event.finish is not None and event.finish.error_message == "bad row"
    assert event.finish.error_kind == "Internal"


def test_a_request_that_leaves_nothing_to_draw_is_told_so() -> None:
    scheduler, _ = guessing(1)
    fault = SequenceFault(1, "every token is forbidden", "no_token_left")
    (event,) = scheduler.apply(StepResult(2, faults=(fault,)), 0.0)
    assert event.finish is not None
    assert (event.finish.error_kind, event.finish.error_code) == ("Unprocessable", "no_token_left")


def test_blocks_reserved_for_guesses_are_used_by_later_tokens() -> None:
    scheduler, result = guessing(1)
    scheduler.apply(result, 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert plan.steps[0].num_tokens == 4 and plan.steps[0].new_block_ids == ()
