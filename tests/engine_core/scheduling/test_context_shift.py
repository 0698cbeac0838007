"""A full context goes on with less of it: what goes, what still counts, whose cells are turned."""

from __future__ import annotations

from array import array
from collections import deque

import pytest

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.request import FinishReason
from engine_core.scheduling.scheduler import Scheduler
from protos.worker import Add, ExecutePlan, Finished, Limits, StepResult
from tests.engine_core.scheduling.checking_worker import CheckingWorker, undisturbed

CONTEXT = 24
PROMPT = list(range(1, 15))


class Run:
    """One scheduler and one checking worker, driven to the end; remembers its plans."""

    def __init__(self, layout: str, num_tokens: int = 96, depth: int = 1) -> None:
        block_size = 1 if layout == "slot" else 4
        self.scheduler = Scheduler(
            num_blocks=num_tokens // block_size, block_size=block_size, vocab_size=100,
            max_model_len=CONTEXT, bounds=Bounds(4, 32, 9), prefix_key=b"m", layout=layout,
        )  # fmt: skip
        self.worker = CheckingWorker(block_size, 4, 32)
        self.depth = depth
        self.plans: list[ExecutePlan] = []
        self.got: dict[int, list[int]] = {}

    def add(self, slot: int, limits: Limits, delivered: list[int] | None = None) -> None:
        columns = () if delivered is None else (array("I", delivered).tobytes(),)
        self.got |= {slot + choice: list(delivered or ()) for choice in range(limits.n)}
        prompt = array("I", PROMPT).tobytes()
        self.scheduler.add(Add(1, slot, "r", prompt, limits, b"", columns), 0.0)

    def outputs(self) -> tuple[dict[int, list[int]], list[Finished]]:
        """Return what every slot has got, and the ends in order."""
        results = deque[StepResult]()
        ends = [event.finish for event in self.scheduler.take_events() if event.finish]
        while True:
            while len(results) < self.depth and (plan := self.scheduler.schedule(0.0)):
                self.plans.append(plan)
                results.append(self.worker.execute(plan))
            if not results:
                break
            result = results.popleft()
            self.worker.applied(result.step_id)
            for event in self.scheduler.apply(result, 0.0):
                assert event.offset == len(self.got[event.slot]) or not event.token_ids
                self.got[event.slot] += event.token_ids
                ends += [event.finish] if event.finish else []
            assert self.scheduler.check() == ""
        assert self.scheduler.pool.num_available == self.scheduler.pool.num_blocks
        return self.got, ends


def limits(n_keep: int | None = 4, max_tokens: int = 60, **more: int) -> Limits:
    return Limits(max_tokens, n_keep=n_keep, **more)


def expected(choice: int = 0, n_keep: int = 4, max_tokens: int = 60) -> list[int]:
    return undisturbed(PROMPT, choice, len(PROMPT) + max_tokens, (), 0, (n_keep, CONTEXT))


@pytest.mark.parametrize("layout", ["block", "slot", "static"])
def test_without_n_keep_a_full_context_is_the_end(layout: str) -> None:
    run = Run(layout)
    run.add(1, limits(None))
    got, (end,) = run.outputs()
    assert FinishReason(end.reason) is FinishReason.LENGTH
    assert len(got[1]) == CONTEXT - len(PROMPT)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("layout", ["block", "slot", "static"])
@pytest.mark.parametrize("n_keep", [0, 4, 14, 1000])
def test_with_n_keep_it_goes_on_to_max_tokens(layout: str, n_keep: int, depth: int) -> None:
    run = Run(layout, depth=depth)
    run.add(1, limits(n_keep))
    got, (end,) = run.outputs()
    assert got[1] == expected(n_keep=n_keep)
    assert (end.num_output_tokens, end.num_prompt_tokens) == (60, len(PROMPT))
    assert end.num_preemptions == 0, "nobody else needed its memory"


def test_the_first_stay_and_the_older_half_of_the_rest_goes() -> None:
    run = Run("block")
    run.add(1, limits(4))
    got, _ = run.outputs()
    whole = PROMPT + got[1]
    begin, again = [start for plan in run.plans for start in plan.starts][:2]
    assert list(array("I", begin.token_ids)) == PROMPT
    assert list(array("I", again.token_ids)) == whole[:4] + whole[14:CONTEXT]
    assert again.num_prompt_tokens == 4, "of the prompt, what is left"
    assert again.num_dropped_outputs == 0
    third = [start for plan in run.plans for start in plan.starts][2]
    assert third.num_prompt_tokens == 4, "what is kept stays prompt"
    assert len(third.token_ids) // 4 - third.num_prompt_tokens + third.num_dropped_outputs == 20


@pytest.mark.parametrize("layout", ["block", "slot", "static"])
def test_choices_do_not_share_a_prompt_that_was_shortened(layout: str) -> None:
    """Memory is short: one choice waits while another has shifted, and then begins with the whole
    prompt."""
    run = Run(layout, num_tokens=32)
    run.add(1, limits(4, max_tokens=40, n=3))
    got, _ = run.outputs()
    assert got == {1 + choice: expected(choice, 4, 40) for choice in range(3)}


def test_min_tokens_counts_what_was_dropped() -> None:
    run = Run("block")
    run.add(1, limits(4, min_tokens=30))
    run.outputs()
    starts = [start for plan in run.plans for start in plan.starts]
    assert [start.min_tokens + start.num_dropped_outputs for start in starts[:3]] == [30, 30, 30]


def test_what_is_left_is_found_again_under_its_own_key_only() -> None:
    """The kept beginning is a hit; the moved tokens have other positions and are none."""
    run = Run("block")
    run.add(1, limits(8))
    run.outputs()
    starts = [start for plan in run.plans for start in plan.starts]
    assert [start.num_computed for start in starts[:2]] == [0, 8]


@pytest.mark.parametrize("num_delivered", [5, 10, 11, 37, 60])
def test_a_replay_goes_on_where_it_was(num_delivered: int) -> None:
    run = Run("block")
    run.add(1, limits(4), delivered=expected()[:num_delivered])
    got, (end,) = run.outputs()
    assert got[1] == expected()
    assert end.num_output_tokens == 60


# ── turned in place ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [1, 2])
def test_turning_computes_nothing_again(depth: int) -> None:
    run = Run("slot", depth=depth)
    run.add(1, limits(4, rotate_kv=True))
    got, _ = run.outputs()
    assert got[1] == expected()
    shifts = [shift for plan in run.plans for shift in plan.shifts]
    assert len(shifts) == 5 and all(shift.delta == -10 for shift in shifts)
    assert all(len(shift.cells) // 4 == 9 for shift in shifts), "the newest is not computed yet"
    assert run.worker.num_computed == len(PROMPT) + 59


def test_cells_of_others_are_cloned_before_they_are_turned() -> None:
    """Two choices share a long prompt; each turns cells of its own, and neither disturbs the other.

    The worker asserts that nobody else reads a turned cell.
    """
    run = Run("slot")
    run.add(1, limits(0, max_tokens=40, n=2, rotate_kv=True))
    got, _ = run.outputs()
    assert got == {1: expected(0, 0, 40), 2: expected(1, 0, 40)}
    first = next(plan for plan in run.plans if plan.shifts)
    assert len(first.copies) == 1, "position 12 of the prompt: 13 is each choice's own"


def test_without_cells_for_the_clones_it_is_computed_anew() -> None:
    run = Run("slot", num_tokens=CONTEXT + CONTEXT - len(PROMPT))
    run.add(1, limits(0, max_tokens=40, n=2, rotate_kv=True))
    got, _ = run.outputs()
    assert got == {1: expected(0, 0, 40), 2: expected(1, 0, 40)}
    starts = sum(len(plan.starts) - len(plan.shifts) for plan in run.plans)
    again = starts - run.scheduler.tally.num_preemptions
    assert again == 3, "two beginnings, and one that could not be turned"


def test_what_was_turned_is_never_found() -> None:
    run = Run("slot")
    run.add(1, limits(4, max_tokens=20, rotate_kv=True))
    run.outputs()
    assert run.scheduler.pool.num_idle == 0
    run.add(2, limits(4, max_tokens=5))
    _, (end,) = run.outputs()
    assert end.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("layout", "asked", "message"),
    [
        ("block", {"n_keep": 4, "rotate_kv": True}, "rotate_kv needs kv_layout=slot, this engine"),
        ("static", {"n_keep": 4, "rotate_kv": True}, "this engine has static"),
        ("slot", {"n_keep": None, "rotate_kv": True}, "rotate_kv needs n_keep"),
        ("slot", {"n_keep": 4, "has_grammar": True}, "n_keep cannot go with a grammar"),
        ("slot", {"n_keep": -1}, "n_keep must be between 0 and"),
    ],
)
def test_what_cannot_be_done_is_refused(layout: str, asked: dict[str, int], message: str) -> None:
    run = Run(layout)
    run.add(1, limits(**asked))
    (event,) = run.scheduler.take_events()
    assert event.finish is not None and message in event.finish.error_message
    assert event.finish.error_param == message.split()[0] or event.finish.error_param == "rotate_kv"
