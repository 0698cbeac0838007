"""What a batch is for: many requests take hardly more steps than one. Steps are counted."""

from __future__ import annotations

from array import array
from collections import deque

import pytest

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.scheduler import Scheduler
from protos.worker import Add, Limits, StepResult
from tests.engine_core.scheduling.checking_worker import CheckingWorker

NUM_PROMPT, NUM_OUTPUT, SEATS, BLOCK_SIZE = 24, 40, 16, 4


def num_steps(num_requests: int, budget: int, depth: int) -> int:
    """Return how many steps `num_requests` take that arrive together."""
    num_blocks = num_requests * (NUM_PROMPT + NUM_OUTPUT) // BLOCK_SIZE
    scheduler = Scheduler(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, vocab_size=100, max_model_len=64,
        bounds=Bounds(SEATS, budget, SEATS), prefix_key=b"m",
    )  # fmt: skip
    worker, results = CheckingWorker(BLOCK_SIZE, SEATS, budget), deque[StepResult]()
    for slot in range(num_requests):
        prompt = array("I", [(slot + i) % 16 for i in range(NUM_PROMPT)]).tobytes()
        scheduler.add(Add(1, slot, "r", prompt, Limits(NUM_OUTPUT), b""), 0.0)
    num_ended = 0
    while num_ended < num_requests:
        while len(results) < depth and (plan := scheduler.schedule(0.0)):
            results.append(worker.execute(plan))
        result = results.popleft()
        worker.applied(result.step_id)
        num_ended += sum(event.finish is not None for event in scheduler.apply(result, 0.0))
    assert not results and scheduler.check() == ""
    return worker.next_step_id - 1


@pytest.mark.parametrize("depth", [1, 2])
def test_sixteen_requests_take_hardly_more_steps_than_one(depth: int) -> None:
    assert num_steps(1, 2048, depth) == NUM_OUTPUT
    assert num_steps(16, 2048, depth) == NUM_OUTPUT, "all prompts fit one step"
    num_prefills = -(-16 * NUM_PROMPT // (128 - SEATS))
    assert num_steps(16, 128, depth) < NUM_OUTPUT + num_prefills, "prompts ride beside the others"
