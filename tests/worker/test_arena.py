"""The arena: aligned, bounded, told by purpose; and a runner that asks for nothing more."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from protos import worker as wire
from tests.worker.plans import sampling, start
from worker import build
from worker.arena import ALIGNMENT, Arena, Piece, num_bytes
from worker.backends.cpu import CpuBackend
from worker.batch import Batch
from worker.build import LoadedModel, load_model
from worker.errors import KernelError
from worker.memory import NoRoom
from worker.models.decoder import Outputs

NUMPY_DOMAIN = 389047
"""The number under which NumPy reports its arrays to tracemalloc."""
BLOCK_BYTES = 2 * 2 * 16 * 16 * 4
"""Of the tiny model."""
PIECES = (Piece((3,), np.int32), Piece((5, 7), np.float32), Piece((0, 4), np.int64))


def test_pieces_are_aligned_zero_and_apart() -> None:
    arena = Arena(num_bytes(PIECES))
    arrays = [arena.take("this", PIECES[0]), arena.take("that", PIECES[1])]
    for array, piece in zip(arrays, PIECES, strict=False):
        assert array.shape == piece.shape and array.dtype == piece.dtype
        assert array.ctypes.data % ALIGNMENT == 0 and not array.any()
        assert array.flags.c_contiguous
    arrays[0][:] = -1
    assert not arrays[1].any()
    assert arena.bytes_by_purpose == {"this": 64, "that": 192}
    assert arena.take("that", PIECES[2]).shape == (0, 4)


def test_what_does_not_fit_is_an_error_with_numbers() -> None:
    arena = Arena(128)
    arena.take("kv", Piece((20,), np.int32))
    with pytest.raises(MemoryError, match="kv asks for 64 bytes, 0 are left of 128"):
        arena.take("kv", Piece((1,), np.int8))


def test_the_ledger_says_what_is_taken(tiny: LoadedModel) -> None:
    memory = tiny.runner(10).memory
    assert memory["kv"] == 10 * BLOCK_BYTES
    assert memory["weights"] == tiny.backend.weight_bytes
    assert memory["workspace"] > 2048 * 5 * 4 and memory["reserve"] >= 0


def test_what_steps_work_in_is_not_given_to_keys_and_values(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together were more than a control group had, which kills when they are written to."""
    free = 200 << 20
    work = tiny.runner(free // BLOCK_BYTES).memory["workspace"]
    monkeypatch.setattr(build, "free_bytes", lambda: free)
    assert tiny.kv_cache_bytes(None) <= (free - work) // 4
    given = tiny.kv_cache_bytes(free - work)
    assert sum(tiny.runner(given // BLOCK_BYTES).memory[one] for one in ("kv", "workspace")) <= free
    with pytest.raises(NoRoom, match="kv_cache_memory is .* lower kv_cache_memory"):
        tiny.kv_cache_bytes(free - work // 2)
    free = work // 2
    with pytest.raises(NoRoom, match="steps of 2048 tokens work in .* lower .*max_ubatch_tokens"):
        tiny.kv_cache_bytes(None)


@pytest.mark.parametrize("level", ["reference", "auto"])
def test_steps_take_no_memory_of_their_own(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Inputs and results stand where they stood, and after 100 steps no array is left over.

    The reference's operators let NumPy allocate what they return; it is free before the next one.
    """
    runner = load_model(tiny_folder, num_threads=1, kernel_level=level).runner(60)
    seen: set[tuple[int, ...]] = set()
    forward = runner._forward

    def watched(batch: Batch) -> Outputs:
        outputs = forward(batch)
        results = outputs if level == "auto" else ()
        seen.add(tuple(array.ctypes.data for array in (*batch[:-1], *results)))
        return outputs

    monkeypatch.setattr(runner, "_forward", watched)
    params = sampling(temperature=1.0, seed=3, top_k=9, repetition_penalty=1.1)
    ids = range(1, 6)
    starts = [
        start(i, [i] * 70, range(12 * i - 12, 12 * i), sampling=params, logprobs=2) for i in ids
    ]
    steps = tuple(wire.SequenceStep(i, 1) for i in ids)
    runner.execute(wire.ExecutePlan(0, tuple(starts)))
    for step_id in range(1, 11):
        runner.execute(wire.ExecutePlan(step_id, steps=steps))
    tracemalloc.start()
    try:
        before = array_bytes()
        for step_id in range(11, 111):
            runner.execute(wire.ExecutePlan(step_id, steps=steps))
        assert array_bytes() - before < 1024
    finally:
        tracemalloc.stop()
    assert len(seen) == 1, "something has moved"


@pytest.mark.parametrize("max_tokens", [1, 5, 64])
def test_the_kernels_work_in_the_arena(tiny_folder: Path, max_tokens: int) -> None:
    """What a pass of the largest size needs is known before the first, and is all there is."""
    model = load_model(tiny_folder, num_threads=1, max_ubatch_tokens=max_tokens)
    runner = model.runner(30)
    workspace = runner._inputs.workspace
    if not isinstance(model.backend, CpuBackend):
        pytest.skip("the compiled kernels are not here")
    assert workspace is not None
    seen: list[tuple[Batch, Outputs]] = []
    forward = runner._forward

    def watched(batch: Batch) -> Outputs:
        seen.append((batch, forward(batch)))
        return seen[-1][1]

    runner._forward = watched
    runner.execute(wire.ExecutePlan(0, (start(1, [7] * 200, range(13)),)))
    assert len(seen) == -(-200 // max_tokens)
    batch, outputs = seen[-1]
    assert np.shares_memory(outputs.logits, workspace.memory)
    with pytest.raises(KernelError, match="the workspace holds"):
        forward(batch._replace(token_ids=np.zeros(max_tokens + 1, np.int32)))


def array_bytes() -> int:
    gc.collect()
    mine = tracemalloc.DomainFilter(True, NUMPY_DOMAIN)
    traces = tracemalloc.take_snapshot().filter_traces([mine]).traces
    return sum(trace.size for trace in traces)
