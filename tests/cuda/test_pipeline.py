"""Two steps under way on a device that works as late as it may: the same answers as one by one.

The real scheduler, which plans one step ahead, over the real runner on emulated kernels.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace as changed
from safetensors.numpy import load_file, save_file

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.prefix_cache import model_key
from engine_core.scheduling.scheduler import Scheduler
from protos import common_pb2
from protos import worker as wire
from tests.cuda.test_engine import SIZES
from tests.emulator.device import EmulatedGpu
from tests.support.fake_scheduler import FakeEngine
from tests.support.model_folders import write_folder
from tests.support.tiny_tokenizer import tiny_library
from tests.worker.plans import generate, sampling, start
from tests.worker.test_server import Running
from worker.backends.cuda_sampler import CudaSampler
from worker.build import LoadedModel, load_model
from worker.flights import Flight
from worker.model_runner import ModelRunner

VOCAB_SIZE = 320
SICK = 7
"""A token whose embedding is NaN."""
SHARED = [(7 * i) % 61 + 8 for i in range(33)]
DIGITS = common_pb2.Grammar(kind=common_pb2.Grammar.REGEX, text="[0-9]+")
CHAINS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.3},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    {"temperature": 1.0, "logit_bias": [{"token_id": 20, "bias": 1.5}]},
    {"temperature": 1.0, "typical_p": 0.9},
    {"temperature": 1.0, "grammar": DIGITS},
    {"temperature": 0.0, "logit_bias": [{"token_id": SICK, "bias": 100.0}]},
]
IN_FLIGHT = [0, 1, 2, 4, 7]
"""Those that may be drawn while the tokens before are not known."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 model with a tokenizer, and with a token that makes its row fail."""
    path = tmp_path_factory.mktemp("model") / "model"
    write_folder(path, **SIZES | {"vocab_size": VOCAB_SIZE, "tie_word_embeddings": False})
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][SICK] = np.nan
    save_file(tensors, path / "model.safetensors")
    tiny_library().save(str(path / "tokenizer.json"))
    return path


def load(
    folder: Path, emulator_folder: Path, *, is_lazy: bool = True, tokens: int = 64
) -> tuple[LoadedModel, EmulatedGpu]:
    gpu = EmulatedGpu(emulator_folder, is_lazy=is_lazy)
    return load_model(folder, "cuda", "float32", max_ubatch_tokens=tokens, gpu=gpu), gpu


class OneByOne:
    """Computes each plan when it comes."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._results: deque[wire.StepResult] = deque()

    def launch(self, plan: wire.ExecutePlan) -> None:
        self._results.append(self.runner.execute(plan))

    def collect(self) -> wire.StepResult:
        return self._results.popleft()


class InFlight:
    """Begins each plan when it comes and takes its result when that is asked for."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.num_overlaps = 0
        self._flying: deque[Flight] = deque()
        self._landed: deque[wire.StepResult] = deque()

    def launch(self, plan: wire.ExecutePlan) -> None:
        flight = self.runner.begin(plan, self._land_all)
        self.num_overlaps += bool(self._flying)
        self._flying.append(flight)
        if flight.wait is None:
            self._land_all()

    def _land_all(self) -> None:
        while self._flying:
            self._landed.append(self._flying.popleft().result())

    def collect(self) -> wire.StepResult:
        if not self._landed:
            self._landed.append(self._flying.popleft().result())
        return self._landed.popleft()


def adds(seed: int, count: int) -> Iterator[tuple[int, wire.Add]]:
    """Yield requests of every kind and the step in which each arrives."""
    rng = np.random.default_rng(seed)
    slot = 0
    for i in range(count):
        chain = CHAINS[rng.integers(len(CHAINS)) if i % 3 == 0 else rng.choice(IN_FLIGHT)]
        own = rng.integers(8, 256, int(rng.integers(1, 40))).tolist()
        n = 2 if rng.random() < 0.2 else 1
        limits = wire.Limits(
            int(rng.integers(2, 20)),
            min_tokens=int(rng.integers(0, 3)),
            stop_token_ids=tuple(rng.integers(8, VOCAB_SIZE, 20).tolist()),
            n=n,
            logprobs=int(rng.integers(0, 7)) if rng.random() < 0.4 else None,
            tenant=str(i % 3),
            has_grammar="grammar" in chain,
            kind="embed" if i == 5 else "generate",
            prompt_logprobs=2 if i == 9 else None,
        )
        prompt = array("I", (SHARED if rng.random() < 0.5 else []) + own).tobytes()
        params = sampling(**{"seed": i} | chain)
        yield int(rng.integers(0, 18)), wire.Add(1, slot, f"r{i}", prompt, limits, params)
        slot += n


class Run(NamedTuple):
    results: list[wire.StepResult]
    num_preemptions: int
    num_hits: int

    def bare(self) -> list[wire.StepResult]:
        """Return the results without their times."""
        return [changed(result, forward_s=0.0, sample_s=0.0) for result in self.results]


def drive(worker: OneByOne | InFlight, loaded: LoadedModel, seed: int, count: int) -> Run:
    """Run `count` requests to their end, two plans under way; return what the worker said."""
    scheduler = Scheduler(
        num_blocks=worker.runner.num_blocks,
        block_size=16,
        vocab_size=VOCAB_SIZE,
        max_model_len=128,
        bounds=Bounds(6, 48, 64),
        prefix_key=model_key(loaded.facts(1 << 20)),
    )
    waiting = sorted(adds(seed, count), key=lambda one: one[0])
    said: list[wire.StepResult] = []
    under_way = step = 0
    while True:
        while waiting and waiting[0][0] <= step:
            scheduler.add(waiting.pop(0)[1], 0.0)
        if step == 14:
            scheduler.abort(1, 2, 0.0)
        while under_way < 2 and (plan := scheduler.schedule(0.0)) is not None:
            scheduler.take_errands()
            worker.launch(plan)
            under_way += 1
        step += 1
        if under_way:
            said.append(worker.collect())
            under_way -= 1
            scheduler.apply(said[-1], 0.0)
        elif not waiting:
            assert scheduler.check() == ""
            tally = scheduler.tally
            return Run(said, tally.num_preemptions, tally.num_prefix_hits)


def both(folder: Path, emulator_folder: Path, seed: int, count: int) -> tuple[Run, int]:
    """Compare a run in flight with one step by step; return it, and how many steps overlapped."""
    plain, _ = load(folder, emulator_folder, is_lazy=False)
    expected = drive(OneByOne(plain.runner(9)), plain, seed, count)
    late, _ = load(folder, emulator_folder)
    worker = InFlight(late.runner(9))
    got = drive(worker, late, seed, count)
    assert got.bare() == expected.bare()
    assert got[1:] == expected[1:]
    return got, worker.num_overlaps


@pytest.mark.kernels
def test_in_flight_is_as_one_by_one(folder: Path, emulator_folder: Path) -> None:
    """Arrivals, ends, stops, aborts, preemptions, cached prefixes, rows that fail, all chains."""
    runs = [both(folder, emulator_folder, seed, 12) for seed in (2, 3, 4)]
    assert sum(num_overlaps for _, num_overlaps in runs) > 20
    results = [result for run, _ in runs for result in run.results]
    assert any(result.faults for result in results)
    assert any(result.logprobs for result in results) and any(result.bulks for result in results)
    assert sum(run.num_preemptions for run, _ in runs) > 0 < sum(run.num_hits for run, _ in runs)


def decoding(runner: ModelRunner, count: int, **fields: Any) -> InFlight:
    """Return a worker that has computed the prompts of `count` rows."""
    worker = InFlight(runner)
    prompts = [start(i, [i + 8, 30, 40], [i - 1], **fields) for i in range(1, count + 1)]
    worker.launch(wire.ExecutePlan(0, tuple(prompts)))
    worker.collect()
    return worker


def steps(step_id: int, *seq_ids: int) -> wire.ExecutePlan:
    return wire.ExecutePlan(step_id, (), tuple(wire.SequenceStep(i, 1) for i in seq_ids))


def test_a_decode_step_is_two_graphs_and_allocates_nothing(
    folder: Path, emulator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, gpu = load(folder, emulator_folder)
    fields = {"sampling": sampling(temperature=0.9, top_p=0.9), "logprobs": 3}
    worker = decoding(loaded.runner(8), 3, **fields)
    for step_id in (1, 2):
        worker.launch(steps(step_id, 1, 2, 3))
    worker.collect()
    overlaps = worker.num_overlaps

    def full(num_bytes: int) -> None:
        raise MemoryError(num_bytes)

    monkeypatch.setattr(gpu, "empty", full)
    gpu.launches.clear()
    gpu.replays.clear()
    for step_id in range(3, 9):
        worker.launch(steps(step_id, 1, 2, 3))
        assert len(worker.collect().token_ids) == 3
    assert len(gpu.replays) == 2 * 6
    assert sum(gpu.replays) == len(gpu.launches), "nothing else was launched"
    assert worker.num_overlaps == overlaps + 6


def test_a_step_says_how_long_the_device_took(folder: Path, emulator_folder: Path) -> None:
    loaded, _ = load(folder, emulator_folder)
    worker = decoding(loaded.runner(8), 1)
    worker.launch(steps(1, 1))
    result = worker.collect()
    assert result.forward_s > 0 < result.sample_s


@pytest.mark.kernels
def test_tokens_of_many_passes_are_kept_apart(
    folder: Path, emulator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows in passes of two; drawn to the same places each time, a pass finds those of the
    pass before instead of its own."""

    def tokens() -> list[tuple[int, ...]]:
        loaded, _ = load(folder, emulator_folder, tokens=2)
        worker = decoding(loaded.runner(8), 4, sampling=sampling(temperature=1.5))
        worker.launch(steps(1, 1, 2, 3, 4))
        out = []
        for step_id in range(2, 5):
            worker.launch(steps(step_id, 1, 2, 3, 4))
            out.append(worker.collect().token_ids)
        return [*out, worker.collect().token_ids]

    expected = tokens()
    assert len({*expected}) == 4
    assert tokens() == expected
    monkeypatch.setattr(CudaSampler, "_take_places", lambda self, count: 0)
    assert tokens() != expected


def test_a_row_that_fails_in_flight_is_said_once(folder: Path, emulator_folder: Path) -> None:
    loaded, _ = load(folder, emulator_folder)
    params = sampling(logit_bias=[{"token_id": SICK, "bias": 100.0}])
    runner = loaded.runner(8)
    worker = InFlight(runner)
    rows = (start(1, [9, 10], [0], sampling=params), start(2, [11, 12], [1]))
    worker.launch(wire.ExecutePlan(0, rows))
    for step_id in (1, 2, 3):
        worker.launch(steps(step_id, 1, 2))
        if step_id == 1:
            assert worker.collect().token_ids[0] == SICK
    assert worker.num_overlaps == 3
    results = [worker.collect() for _ in range(3)]
    assert [[fault.seq_id for fault in result.faults] for result in results] == [[1], [], []]
    assert [result.seq_ids for result in results] == [(2,)] * 3
    worker.launch(wire.ExecutePlan(4, (start(1, [9, 10], [0]),), finished=(2,)))
    assert worker.collect().seq_ids == (1,), "its successor is well"


def test_a_row_that_starts_anew_in_flight_outlives_its_failure(
    folder: Path, emulator_folder: Path
) -> None:
    """The step that fails is still computed when the scheduler has already started it again."""
    loaded, _ = load(folder, emulator_folder)
    worker = InFlight(loaded.runner(8))
    worker.launch(wire.ExecutePlan(0, (start(1, [SICK, 10], [0]),)))
    worker.launch(wire.ExecutePlan(1, (start(1, [9, 10], [1]),)))
    assert worker.num_overlaps == 1
    assert [fault.seq_id for fault in worker.collect().faults] == [1]
    assert worker.collect().seq_ids == (1,)
    worker.launch(steps(2, 1))
    assert worker.collect().seq_ids == (1,)


def test_a_worker_process_keeps_two_steps_under_way(folder: Path, emulator_folder: Path) -> None:
    """Over real sockets, with a thread that waits for the device."""
    loaded, _ = load(folder, emulator_folder)
    prompts = {1: [20, 21, 22], 2: [30, 31]}
    reference = load_model(folder, kernel_level="reference").runner(8)
    expected = generate(reference, prompts, 6).token_ids
    engine = FakeEngine()
    running = Running(engine, loaded)
    try:
        _, scheduler = engine.ready(8)
        rows = tuple(start(i, prompt, [i]) for i, prompt in prompts.items())
        scheduler.send(wire.ExecutePlan(0, rows))
        got: dict[int, list[int]] = {1: [], 2: []}
        for step_id in range(6):
            if step_id < 5:
                scheduler.send(steps(step_id + 1, 1, 2))
            result = scheduler.expect(wire.StepResult)
            assert result.step_id == step_id
            for seq_id, token_id in zip(result.seq_ids, result.token_ids, strict=True):
                got[seq_id].append(token_id)
        assert got == expected
        scheduler.send(steps(6, 1, 2))
        scheduler.close()  # in flight
        _, scheduler = engine.ready(8)
        assert scheduler.execute(wire.ExecutePlan(0, rows)).token_ids[0] == expected[1][0]
    finally:
        running.end()
        engine.close()
