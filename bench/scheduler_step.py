"""What the scheduler costs by itself: `python -m bench.scheduler_step [--streams 256]`.

One scheduler, every row decoding, results made up on the spot: no link, no worker, no publishing.
Prints the milliseconds of schedule and apply. Then requests that come and go, and the pauses of the
garbage collector meanwhile, as the scheduler process has it set.
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
from worker.kv_cache import BLOCK_SIZES

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


def new_scheduler(streams: int, num_tokens: int, layout: str, *, has_cache: bool) -> Scheduler:
    """Return a scheduler with room for `streams` sequences of `num_tokens` tokens."""
    block_size = BLOCK_SIZES[layout]
    return Scheduler(
        num_blocks=streams * (num_tokens // block_size + 2),
        block_size=block_size,
        vocab_size=1 << 17,
        max_model_len=1 << 15,
        bounds=Bounds(streams, 2048, streams),
        prefix_key=b"bench" if has_cache else None,
        layout=layout,
    )


def filled(streams: int, steps: int, layout: str, *, has_cache: bool) -> Scheduler:
    """Return a scheduler with `streams` requests of two tenants that outlive `steps` steps."""
    num_tokens = PROMPT_TOKENS + steps + WARM_UP_STEPS
    scheduler = new_scheduler(streams, num_tokens + 16, layout, has_cache=has_cache)
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
    streams: int, steps: int, layout: str, *, has_cache: bool
) -> tuple[list[float], list[float]]:
    """Return the seconds of every schedule and every apply once all rows decode."""
    scheduler, known = filled(streams, steps, layout, has_cache=has_cache), dict[int, int]()
    freeze_heap()
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
    return schedule_s, apply_s


def come_and_go(streams: int, num_requests: int, layout: str, pauses: Pauses) -> int:
    """Let `num_requests` short requests pass, `streams` at a time; return the number of steps."""
    scheduler = new_scheduler(streams, 224, layout, has_cache=True)
    freeze_heap()
    gc.callbacks.append(pauses)
    known, num_sent, num_steps, live = dict[int, int](), 0, 0, 0
    while live or num_sent < num_requests:
        for slot in range(num_sent, min(num_sent + streams - live, num_requests)):
            prompt = array("I", ((slot * 31 + i) % 99_991 for i in range(PROMPT_TOKENS // 4)))
            limits = Limits(8 + slot % 40, tenant=str(slot % 3))
            scheduler.add(Add(1, slot, f"r{slot}", prompt.tobytes(), limits, b""), 0.0)
            num_sent, live = num_sent + 1, live + 1
        plan = scheduler.schedule(0.0)
        assert plan is not None
        for event in scheduler.apply(answer(plan, known), 0.0):
            live -= event.finish is not None
        num_steps += 1
    gc.callbacks.remove(pauses)
    return num_steps


def main() -> None:
    """Print one table and one line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--layout", choices=BLOCK_SIZES, default="block")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    print(f"{args.layout}: {args.streams} streams that decode, {args.steps} steps, milliseconds\n")
    print("| prefix cache | schedule p50 | apply p50 | sum p50 | sum p99 |")
    print("|---|---|---|---|---|")
    for has_cache in (False, True):
        schedule_s, apply_s = measure(args.streams, args.steps, args.layout, has_cache=has_cache)
        sums = [a + b for a, b in zip(schedule_s, apply_s, strict=True)]
        figures = [percentile(schedule_s, 0.5), percentile(apply_s, 0.5)]
        figures += [percentile(sums, 0.5), percentile(sums, 0.99)]
        cells = " | ".join(f"{seconds * 1e3:.3f}" for seconds in figures)
        print(f"| {'on' if has_cache else 'off'} | {cells} |")
    pauses = Pauses()
    num_steps = come_and_go(args.streams, args.requests, args.layout, pauses)
    print(
        f"\n{args.requests} requests in {num_steps} steps: {len(pauses.seconds)} collections, the "
        f"longest {max(pauses.seconds, default=0.0) * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main()
