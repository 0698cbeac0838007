"""Blocks of a GPU's cache in host memory: what comes back is what was there, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protos import worker as wire
from tests.cuda.test_engine import SIZES
from tests.emulator.device import EmulatedGpu
from tests.support.model_folders import write_folder
from tests.test_host_memory import PROMPT, Engine
from tests.worker.plans import start
from worker.backends.cuda_cache import CudaKvCache
from worker.backends.gpu import Gpu
from worker.build import LoadedModel, load_model
from worker.errands import BLOCKS_A_TURN
from worker.model_runner import ModelRunner

BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 2
NUM_BLOCKS = 24


@pytest.fixture
def model(tmp_path: Path, gpu: Gpu) -> LoadedModel:
    folder = write_folder(tmp_path / "model", **SIZES)
    return load_model(
        folder, "cuda", "bfloat16", max_ubatch_tokens=64, gpu=gpu, host_kv_bytes=30 * BLOCK_BYTES
    )


def fill(runner: ModelRunner, gpu: Gpu) -> np.ndarray:  # type: ignore[type-arg]
    """Write noise to all pages and return it, [layers, 2, pages, …]."""
    cache = runner._cache
    assert isinstance(cache, CudaKvCache)
    noise = np.random.default_rng(3).integers(0, 256, cache._raw.nbytes, np.uint8)
    gpu.write(cache._raw, noise)
    return noise.reshape(2, 2, NUM_BLOCKS + 1, -1)


def test_what_comes_back_is_what_was_stored(model: LoadedModel, gpu: Gpu) -> None:
    """More blocks than are staged at a time, in any order, to other places; nothing else moves."""
    runner = model.runner(NUM_BLOCKS)
    tier = runner.host_tier
    assert tier is not None and runner.memory["host"] == 30 * BLOCK_BYTES
    before = fill(runner, gpu)
    stored = [11, 0, 3, 22, 7, 5, 1, 19, 2, 8, 23]
    assert len(stored) > BLOCKS_A_TURN
    keys = [bytes([block]) for block in stored]
    assert tier.store(stored, keys) == len(stored)
    places = [4, 6, 9, 10, 12, 13, 14, 15, 16, 17, 18]
    assert tier.load(places, keys[::-1]) == len(places)
    expected = before.copy()
    expected[:, :, places] = before[:, :, stored[::-1]]
    cache = runner._cache
    assert isinstance(cache, CudaKvCache)
    after = gpu.read(cache._raw).reshape(expected.shape)
    np.testing.assert_array_equal(after, expected)


def test_a_flipped_bit_is_a_loss(model: LoadedModel, gpu: Gpu) -> None:
    runner = model.runner(NUM_BLOCKS)
    tier = runner.host_tier
    assert tier is not None
    fill(runner, gpu)
    tier.store([0, 1, 2], [b"a", b"b", b"c"])
    tier._memory[tier._held[b"b"][0], 100] ^= 1
    assert tier.load([5, 6, 7], [b"a", b"b", b"c"]) == 1
    assert tier.events == {"stored": 3, "loaded": 1, "lost": 1}


@pytest.mark.kernels
def test_a_prompt_goes_on_from_restored_blocks(model: LoadedModel) -> None:
    runner = model.runner(NUM_BLOCKS)
    tier = runner.host_tier
    assert tier is not None
    prompt = list(range(5, 40))
    expected = runner.execute(wire.ExecutePlan(0, (start(1, prompt, (0, 1, 2)),))).token_ids
    tier.store((0, 1), (b"a", b"b"))
    runner.execute(wire.ExecutePlan(1, (start(2, [9] * 40, (0, 1, 2)),), finished=(1,)))
    assert tier.load((20, 3), (b"a", b"b")) == 2
    again = start(3, prompt, (20, 3, 7), 3, num_computed=32)
    assert runner.execute(wire.ExecutePlan(2, (again,))).token_ids == expected


@pytest.mark.kernels
def test_under_a_scheduler_the_answer_is_the_same(model: LoadedModel) -> None:
    """Evicted by other prompts, stored, found and loaded: tokens and logprobs to the last bit."""
    engine = Engine(model)
    first = engine.ask(PROMPT)
    engine.crowd_out()
    again = engine.ask(PROMPT)
    assert again[:2] == first[:2]
    assert again[2] == 96 and engine.tier.events["loaded"] == 6
    assert not engine.tier.events["lost"]


def test_memory_that_cannot_be_pinned_is_an_error(
    model: LoadedModel, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Gpu, num_bytes: int) -> None:
        raise MemoryError(f"{num_bytes} bytes of the host cannot be pinned")

    if not isinstance(gpu, EmulatedGpu):
        pytest.skip("a real host has room")
    monkeypatch.setattr(EmulatedGpu, "pinned", refuse)
    with pytest.raises(ValueError, match=f"host_kv_memory: {30 * BLOCK_BYTES} bytes of the host"):
        model.runner(NUM_BLOCKS)
