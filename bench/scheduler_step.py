"""What the scheduler costs by itself: `python -m bench.scheduler_step [--streams 256]`.

One scheduler, every row decoding, results made up on the spot: no link, no worker, no publishing.
Prints the milliseconds of schedule and apply, and the longest pause of the garbage collector.
"""

from __future__ import annotations

import argparse
import gc
import time
from array import array

from bench.load import percentile
from engine_core.scheduler_process import freeze_heap
from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.scheduler import Scheduler
from protos.worker import Add, ExecutePlan, Limits, SequenceStart, SequenceStep, StepResult

PROMPT_TOKENS = 200
WARM_UP_STEPS = 200
"""More than it takes until all prompts are in."""


class Pauses:
    """Seconds of every collection of the garbage collector, while it is in `gc.callbacks`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds.append(time.perf_counter() - self._began)


def filled(streams: int, steps: int, *, has_cache: bool) -> Scheduler:
    """Return a scheduler with `streams` requests of two tenants that outlive `steps` steps."""
    per_row = (PROMPT_TOKENS + steps + WARM_UP_STEPS) // 16 + 2
    scheduler = Scheduler(
        num_blocks=streams * per_row,
        block_size=16,
        vocab_size=1 << 17,
        max_model_len=1 << 15,
        bounds=Bounds(streams, 2048, streams),
        prefix_key=b"bench" if has_cache else None,
    )
    for slot in range(streams):
        prompt = array("I", range(slot, slot + PROMPT_TOKENS)).tobytes()
        limits = Limits(steps + WARM_UP_STEPS, tenant=str(slot % 2), stop_token_ids=(1, 2))
        scheduler.add(Add(1, slot, f"r{slot}", prompt, limits, b""), 0.0)
    return scheduler


def answer(plan: ExecutePlan, known: dict[int, int]) -> StepResult:
    """Return one token for every row that reaches the end of its known tokens."""
    for start in plan.starts:
        known[start.seq_id] = len(start.token_ids) // 4 - start.num_computed
    ids = []
    rows: tuple[SequenceStart | SequenceStep, ...] = (*plan.starts, *plan.steps)
    for row in rows:
        known[row.seq_id] -= row.num_tokens
        if not known[row.seq_id]:
            known[row.seq_id] = 1
            ids.append(row.seq_id)
    return StepResult(plan.step_id, tuple(ids), (1,) * len(ids), (77,) * len(ids))


def measure(
    streams: int, steps: int, pauses: Pauses, *, has_cache: bool
) -> tuple[list[float], list[float]]:
    """Return the seconds of every schedule and every apply once all rows decode."""
    scheduler, known = filled(streams, steps, has_cache=has_cache), dict[int, int]()
    freeze_heap()
    gc.callbacks.append(pauses)
    schedule_s: list[float] = []
    apply_s: list[float] = []
    while len(apply_s) < steps:
        now = time.perf_counter()
        plan = scheduler.schedule(now)
        planned = time.perf_counter()
        assert plan is not None
        result = answer(plan, known)
        begin = time.perf_counter()
        events = scheduler.apply(result, now)
        end = time.perf_counter()
        if len(events) == streams and not plan.starts:
            schedule_s.append(planned - now)
            apply_s.append(end - begin)
    gc.callbacks.remove(pauses)
    return schedule_s, apply_s


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    print(f"{args.streams} streams that decode, {args.steps} steps, milliseconds\n")
    print("| prefix cache | schedule p50 | apply p50 | sum p50 | sum p99 | longest gc pause |")
    print("|---|---|---|---|---|---|")
    for has_cache in (False, True):
        pauses = Pauses()
        schedule_s, apply_s = measure(args.streams, args.steps, pauses, has_cache=has_cache)
        sums = [a + b for a, b in zip(schedule_s, apply_s, strict=True)]
        figures = [percentile(schedule_s, 0.5), percentile(apply_s, 0.5)]
        figures += [percentile(sums, 0.5), percentile(sums, 0.99)]
        figures.append(max(pauses.seconds, default=0.0))
        cells = " | ".join(f"{seconds * 1e3:.3f}" for seconds in figures)
        print(f"| {'on' if has_cache else 'off'} | {cells} |")


if __name__ == "__main__":
    main()
