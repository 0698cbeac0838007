"""Embeddings of whole prompts: the golden vectors, no token drawn, no bit from the chunking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protos import worker as wire
from tests.worker.plans import num_blocks_for, start
from tests.worker.test_reference_models import SMALL, golden, loaded
from worker.build import LoadedModel
from worker.kernels.checks import Floats
from worker.safetensors import SafetensorsFile

PROMPTS = [[5, 9, 2], list(range(3, 70)), [7]]


def embed(
    model: LoadedModel, prompts: list[list[int]], pooling: str, chunk: int = 10**9
) -> dict[int, Floats]:
    """Feed all prompts together, in chunks; one vector each, in the step that ends the prompt."""
    runner = model.runner(sum(num_blocks_for(len(ids), 16) for ids in prompts))
    blocks = iter(range(runner.num_blocks))
    done, vectors = [0] * len(prompts), {}
    while any(d < len(ids) for d, ids in zip(done, prompts, strict=True)):
        starts, steps = [], []
        for i, ids in enumerate(prompts):
            count = min(chunk, len(ids) - done[i])
            if done[i] == 0:
                mine = [next(blocks) for _ in range(num_blocks_for(len(ids), 16))]
                starts.append(start(i, ids, mine, count, pooling=pooling))
            elif count:
                steps.append(wire.SequenceStep(i, count))
            done[i] += count
        result = runner.execute(wire.ExecutePlan(0, tuple(starts), tuple(steps)))
        assert not result.faults and not result.token_ids
        for bulk in result.bulks:
            assert done[bulk.key] == len(prompts[bulk.key]) and bulk.key not in vectors
            vectors[bulk.key] = np.frombuffer(bulk.embedding, "<f4")
    assert len(vectors) == len(prompts)
    return vectors


@pytest.mark.parametrize("name", SMALL)
def test_golden_embeddings(reference_data: Path, name: str) -> None:
    folder = reference_data / "golden" / name
    expected = SafetensorsFile(folder / "golden.safetensors")
    prompts = [prompt["ids"] for prompt in golden(folder)["prompts"]]
    for pooling in ("mean", "last"):
        vectors = embed(loaded(folder), prompts, pooling)
        for i in range(len(prompts)):
            wanted = expected.read(f"embedding_{pooling}.{i}")
            np.testing.assert_allclose(vectors[i], wanted, rtol=0, atol=1e-3)


def test_the_mean_of_the_real_vocabulary(reference_data: Path) -> None:
    folder = reference_data / "golden" / "qwen2-realvocab-bf16"
    cases = golden(folder)["cases"]
    vectors = embed(loaded(folder), [case["ids"] for case in cases], "mean", chunk=16)
    for i, case in enumerate(cases):
        np.testing.assert_allclose(vectors[i], case["embedding_mean"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("chunk", [1, 16, 23])
def test_chunks_do_not_matter(tiny: LoadedModel, pooling: str, chunk: int) -> None:
    whole = [embed(tiny, [ids], pooling)[0] for ids in PROMPTS]
    for i, vector in embed(tiny, PROMPTS, pooling, chunk).items():
        assert np.array_equal(vector, whole[i])


def test_rows_that_draw_stand_beside_them(tiny: LoadedModel) -> None:
    runner = tiny.runner(8)
    both = (start(1, [5, 6, 7], [0]), start(2, [5, 6, 7], [1], pooling="mean"))
    result = runner.execute(wire.ExecutePlan(0, both))
    assert result.seq_ids == (1,) and [bulk.key for bulk in result.bulks] == [2]
    alone = tiny.runner(8).execute(wire.ExecutePlan(0, both[:1]))
    assert alone.token_ids == result.token_ids


def test_what_cannot_be_pooled_is_a_fault_of_its_row(tiny: LoadedModel) -> None:
    rows = (
        start(1, [5, 6], [0], pooling="max"),
        start(2, [5, 6], [1], num_tokens=1, num_computed=1, pooling="mean"),
        start(3, [5, 6], [2], pooling="last"),
    )
    runner = tiny.runner(8)
    result = runner.execute(wire.ExecutePlan(0, rows))
    assert [fault.seq_id for fault in result.faults] == [1, 2]
    assert "last, mean" in result.faults[0].message and "every state" in result.faults[1].message
    assert [bulk.key for bulk in result.bulks] == [3]


def test_a_state_that_is_not_finite_is_a_fault(tiny: LoadedModel) -> None:
    runner = tiny.runner(2)
    runner.execute(wire.ExecutePlan(0, (start(1, [1] * 16, [0], pooling="last"),)))
    for layer in runner._cache.layers:
        layer.values[0] = np.nan
    tail = start(2, [1] * 17, [0, 1], num_tokens=1, num_computed=16, pooling="last")
    result = runner.execute(wire.ExecutePlan(1, (tail,)))
    assert not result.bulks and "not finite" in result.faults[0].message
