"""Memory of a device of a stated size: what is offered to keys and values is what is left."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path

import pytest

from protos import worker as wire
from tests.cuda.test_engine import PROMPTS, SIZES
from tests.emulator.device import KERNEL_BYTES, EmulatedGpu
from tests.support.model_folders import write_folder
from tests.worker.plans import generate, sampling, start
from worker import device_memory
from worker.backends.cuda import CudaBackend
from worker.backends.gpu import Gpu
from worker.build import LoadedModel, load_model
from worker.warm_up import warm_up

MIB = 2**20
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 2
"""bfloat16 keys and values of 16 tokens: two layers, two heads of 16."""
TOTAL = 24 * MIB
PURPOSES = {"weights", "kv", "step", "graphs", "context", "reserve", "workspace"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model") / "model", **SIZES)


def load(folder: Path, emulator_folder: Path, total: int, tokens: int = 24) -> LoadedModel:
    gpu = EmulatedGpu(emulator_folder, total_bytes=total)
    return load_model(folder, "cuda", "bfloat16", max_ubatch_tokens=tokens, gpu=gpu)


def gpu_of(loaded: LoadedModel) -> EmulatedGpu:
    assert isinstance(loaded.backend, CudaBackend)
    gpu = loaded.backend.gpu
    assert isinstance(gpu, EmulatedGpu)
    return gpu


def test_what_is_offered_fits_beside_every_step(
    folder: Path, emulator_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it can be allocated, the largest steps then run, and more than a margin stays free."""
    loaded = load(folder, emulator_folder, TOTAL)
    offered = loaded.kv_cache_bytes(None)
    margin = int(TOTAL * device_memory.MARGIN)
    assert offered > TOTAL // 2, "a toy takes little"
    num_blocks = loaded.facts(offered).max_blocks
    runner = loaded.runner(num_blocks)
    with caplog.at_level(logging.INFO):
        warm_up(runner)
    full = {"temperature": 0.9, "repetition_penalty": 1.2, "top_p": 0.9}
    generate(runner, PROMPTS, 4, chunk=16, sampling=sampling(**full), logprobs=3)
    memory = runner.memory
    assert memory.keys() == PURPOSES
    assert sum(size for purpose, size in memory.items() if purpose != "workspace") == TOTAL
    assert memory["kv"] == (num_blocks + 1) * BLOCK_BYTES
    assert memory["context"] > 0 < memory["graphs"]
    assert margin // 2 < memory["reserve"] < 2 * margin + 2 * MIB
    record = next(one for one in caplog.records if one.message == "memory")
    assert record.__dict__["kv_bytes"] == memory["kv"]


def test_a_pass_that_fails_leaves_the_buffers_of_graphs_to_graphs(
    folder: Path, emulator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that ran launch by launch afterwards would have moved what graphs point to."""
    loaded = load(folder, emulator_folder, TOTAL)
    backend = loaded.backend
    assert isinstance(backend, CudaBackend)
    scratch = backend.scratch

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(backend, "_logits", fail)
    with pytest.raises(MemoryError, match="no room"):
        loaded.runner(8)
    assert backend.scratch is scratch


@pytest.mark.kernels
def test_more_than_there_is_is_refused(folder: Path, emulator_folder: Path) -> None:
    loaded = load(folder, emulator_folder, TOTAL)
    assert loaded.kv_cache_bytes(MIB) == MIB
    with pytest.raises(ValueError, match=rf"kv_cache_memory is {TOTAL} bytes, emulator of {TOTAL}"):
        loaded.kv_cache_bytes(TOTAL)
    with pytest.raises(MemoryError, match="do not fit on emulator"):
        loaded.runner(TOTAL // BLOCK_BYTES)


@pytest.mark.kernels
def test_a_model_that_leaves_no_room_says_so(folder: Path, emulator_folder: Path) -> None:
    with pytest.raises(ValueError, match="the weights do not fit: .* bytes do not fit on emulator"):
        load(folder, emulator_folder, MIB // 8)
    with pytest.raises(ValueError, match="a step of 24 tokens does not fit beside"):
        load(folder, emulator_folder, 2 * MIB).kv_cache_bytes(None)
    needed = TOTAL - load(folder, emulator_folder, TOTAL).kv_cache_bytes(None)
    assert needed < TOTAL // 2


@pytest.mark.kernels
def test_the_next_life_finds_the_memory_of_the_last(folder: Path, emulator_folder: Path) -> None:
    loaded = load(folder, emulator_folder, TOTAL)
    offers = []
    for _ in range(3):
        offers.append(loaded.kv_cache_bytes(None))
        runner = loaded.runner(loaded.facts(offers[-1]).max_blocks)
        warm_up(runner)
        gone = weakref.ref(runner)
        del runner
        assert gone() is None, "only the collector would have found it"
    assert offers[1] == offers[2]
    assert 0 <= offers[0] - offers[1] < 16 * KERNEL_BYTES, "a few kernels were new"


@pytest.mark.kernels
def test_the_buffers_of_graphs_grow_as_is_said(folder: Path, emulator_folder: Path) -> None:
    loaded = load(folder, emulator_folder, TOTAL)
    backend = loaded.backend
    assert isinstance(backend, CudaBackend)
    sizes = []
    for num_blocks in (256, 512):
        runner = loaded.runner(num_blocks)
        sizes.append(backend.graph_bytes)
        del runner
    assert 0 < sizes[1] - sizes[0] <= 256 * backend.graph_bytes_per_block(16)


@pytest.mark.kernels
def test_rows_that_share_a_prompt_need_no_more_than_was_measured(
    tmp_path: Path, emulator_folder: Path
) -> None:
    """Parts of keys are kept by row, not by block: a pass is cut before they outgrow the cache."""
    folder = write_folder(tmp_path / "model", **SIZES, max_position_embeddings=1024)
    loaded = load(folder, emulator_folder, TOTAL, 64)
    runner, prompt, blocks = loaded.runner(60), [7] * 900, tuple(range(57))
    starts = [start(i, prompt, blocks, 1, num_computed=899, logprobs=3) for i in range(20)]
    runner.execute(wire.ExecutePlan(0, (start(99, prompt, blocks),)))
    alone = runner.execute(wire.ExecutePlan(1, (starts[0],))).logprobs[0]
    before = runner.memory["step"] + runner.memory["graphs"]
    result = runner.execute(wire.ExecutePlan(2, tuple(starts)))
    assert not result.faults and len(result.logprobs) == 20
    assert {row.logprobs for row in result.logprobs} == {alone.logprobs}
    assert runner.memory["step"] + runner.memory["graphs"] - before < 64 * 2**10


@pytest.mark.kernels
def test_a_larger_step_leaves_less(folder: Path, emulator_folder: Path) -> None:
    small, large = (
        load(folder, emulator_folder, TOTAL, tokens).kv_cache_bytes(None) for tokens in (16, 48)
    )
    assert large < small


@pytest.mark.kernels
def test_a_device_that_others_use_offers_what_they_leave(
    folder: Path, emulator_folder: Path
) -> None:
    loaded = load(folder, emulator_folder, TOTAL)
    alone = loaded.kv_cache_bytes(None)
    theirs = gpu_of(loaded).empty(4 * MIB)
    assert alone - 5 * MIB < loaded.kv_cache_bytes(None) < alone - 3 * MIB
    del theirs


def test_a_real_device_holds_what_is_offered(
    folder: Path, gpu: Gpu, pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--cuda"):
        pytest.skip("fills a GPU: runs with --cuda")
    loaded = load_model(folder, "cuda", "bfloat16", gpu=gpu)
    runner = loaded.runner(loaded.facts(loaded.kv_cache_bytes(None)).max_blocks)
    warm_up(runner)
    assert runner.memory["reserve"] > 0
