"""The whole runner over CUDA kernels, with toy models: tokens and bits, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import worker as wire
from tests.cuda.case import EPSILON
from tests.emulator.device import EmulatedGpu
from tests.support.model_folders import write_folder
from tests.worker.plain_model import PlainModel
from tests.worker.plans import columns, generate, sampling, start
from worker.backends.gpu import Gpu
from worker.build import LoadedModel, load_model
from worker.model_runner import ModelRunner

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"vocab_size": 100},
    "qwen2-window": WINDOW,
    "llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "intermediate_size": 160},
}
RNG = np.random.default_rng(4)
PROMPTS = {i: RNG.integers(0, 96, size).tolist() for i, size in enumerate((3, 70, 21), 1)}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.2},
    "common chain": {
        "temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2,
        "frequency_penalty": 0.3, "presence_penalty": 0.1,
        "logit_bias": [{"token_id": 5, "bias": 2.0}],
    },
    "rare chain": {"temperature": 0.9, "typical_p": 0.8},
}  # fmt: skip


def load(folder: Path, gpu: Gpu, dtype: str = "float32", layout: str = "block") -> LoadedModel:
    return load_model(folder, "cuda", dtype, kv_layout=layout, gpu=gpu)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", **SIZES)


@pytest.mark.kernels
@pytest.mark.parametrize("name", FAMILIES)
def test_float32_tokens_are_the_references(tmp_path: Path, gpu: Gpu, name: str) -> None:
    folder = write_folder(tmp_path / name, **SIZES | FAMILIES[name])
    expected = generate(load_model(folder, kernel_level="reference").runner(24), PROMPTS, 8)
    got = generate(load(folder, gpu).runner(24), PROMPTS, 8, chunk=16)
    assert got.token_ids == expected.token_ids


@pytest.mark.parametrize(
    "name",
    [
        name if name == "common chain" else pytest.param(name, marks=pytest.mark.kernels)
        for name in SAMPLINGS
    ],
)
def test_draws_are_the_references(folder: Path, gpu: Gpu, name: str) -> None:
    """Every chain, on the device or brought to the host: the same tokens and logprobs."""
    fields = {"sampling": sampling(seed=11, **SAMPLINGS[name]), "logprobs": 3}
    wanted = generate(load_model(folder, kernel_level="reference").runner(24), PROMPTS, 6, **fields)
    got = generate(load(folder, gpu).runner(24), PROMPTS, 6, **fields)
    assert got.token_ids == wanted.token_ids
    for seq_id, rows in got.logprobs.items():
        for mine, theirs in zip(rows, wanted.logprobs[seq_id], strict=True):
            assert mine.token_ids == theirs.token_ids
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)


def test_bfloat16_stays_within_its_margins(folder: Path, gpu: Gpu) -> None:
    """Each token is the likeliest of a float64 model, or nearly."""
    out = generate(load(folder, gpu, "bfloat16").runner(24), PROMPTS, 8)
    plain = PlainModel(folder)
    for seq_id, prompt in PROMPTS.items():
        ids = list(prompt)
        for token_id in out.token_ids[seq_id]:
            logits = plain.logits(ids)[-1]
            assert logits[token_id] > logits.max() - 40 * EPSILON["bf16"]
            ids.append(token_id)


def logprobs_of(
    runner: ModelRunner, prompts: dict[int, Sequence[int]], chunk: int
) -> dict[int, list[tuple[float, ...]]]:
    fields = {"sampling": sampling(seed=3, temperature=1.0), "logprobs": 5}
    out = generate(runner, prompts, 5, chunk, **fields)
    return {seq_id: [row.logprobs for row in rows] for seq_id, rows in out.logprobs.items()}


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bits_depend_on_neither_batch_nor_chunk_nor_layout(
    folder: Path, gpu: Gpu, dtype: str
) -> None:
    together = logprobs_of(load(folder, gpu, dtype).runner(24), PROMPTS, 1000)
    chunked = logprobs_of(load(folder, gpu, dtype).runner(24), PROMPTS, 7)
    slots = logprobs_of(load(folder, gpu, dtype, "slot").runner(300), PROMPTS, 33)
    assert together == chunked == slots
    for seq_id, prompt in PROMPTS.items():
        alone = logprobs_of(load(folder, gpu, dtype).runner(24), {seq_id: prompt}, 1000)
        assert alone[seq_id] == together[seq_id]


def test_decoding_is_a_graph_and_allocates_nothing(folder: Path, gpu: Gpu) -> None:
    loaded = load(folder, gpu, "bfloat16")
    runner = loaded.runner(24)
    runner.execute(wire.ExecutePlan(0, (start(1, PROMPTS[1], [0]), start(2, PROMPTS[1], [1]))))
    steps = tuple(wire.SequenceStep(i, 1) for i in (1, 2))
    runner.execute(wire.ExecutePlan(1, (), steps))
    before = loaded.backend.scratch.num_allocations
    for step_id in range(2, 8):
        assert not runner.execute(wire.ExecutePlan(step_id, (), steps)).faults
    assert loaded.backend.scratch.num_allocations == before


@pytest.mark.kernels
def test_copies_and_shifts(folder: Path, gpu: Gpu) -> None:
    """A sequence in copied blocks goes on as the first; a turned one as the reference's."""
    plans = [
        wire.ExecutePlan(0, (start(1, PROMPTS[3], [0, 1]),)),
        wire.ExecutePlan(
            1,
            (start(2, PROMPTS[3], [4, 5], 1, num_computed=len(PROMPTS[3]) - 1),),
            copies=(wire.BlockCopy(0, 4), wire.BlockCopy(1, 5)),
        ),
    ]
    runner = load(folder, gpu).runner(8)
    first, second = (runner.execute(plan).token_ids for plan in plans)
    assert first == second
    shift = wire.Shift(1, columns(range(4, 12)), -3)
    shifted = wire.ExecutePlan(2, (), (wire.SequenceStep(1, 1),), shifts=(shift,))
    mine = runner.execute(shifted).token_ids
    reference = load_model(folder, kernel_level="reference").runner(8)
    for plan in plans:
        reference.execute(plan)
    assert reference.execute(shifted).token_ids == mine


@pytest.mark.kernels
def test_guesses_change_nothing(folder: Path, gpu: Gpu) -> None:
    wanted = generate(load(folder, gpu).runner(24), {1: PROMPTS[1]}, 4).token_ids[1]
    runner = load(folder, gpu).runner(24)
    first = runner.execute(wire.ExecutePlan(0, (start(1, PROMPTS[1], [0]),))).token_ids
    step = wire.SequenceStep(1, 3, (), (wanted[1], wanted[2] ^ 1))
    more = runner.execute(wire.ExecutePlan(1, (), (step,)))
    assert [*first, *more.token_ids] == wanted[:3]
    assert more.counts == (2,)


def test_a_hook_sees_what_the_reference_shows(folder: Path, gpu: Gpu) -> None:
    seen: list[dict[tuple[str, int], Any]] = []
    for loaded in (load(folder, gpu), load_model(folder, kernel_level="reference")):
        shown: dict[tuple[str, int], Any] = {}
        hook = loaded.register_hook(
            "*", lambda name, tensor, layer, shown=shown: shown.update({(name, layer): tensor})
        )
        loaded.runner(8).execute(wire.ExecutePlan(0, (start(1, PROMPTS[3], [0, 1]),)))
        hook.remove()
        seen.append(shown)
    assert seen[0].keys() == seen[1].keys()
    for name, tensor in seen[0].items():
        expected = seen[1][name]
        np.testing.assert_allclose(
            tensor.reshape(expected.shape), expected, atol=2e-4, err_msg=name
        )


def test_a_row_that_is_not_finite_fails_alone(tmp_path: Path, gpu: Gpu) -> None:
    folder = write_folder(tmp_path / "model", **SIZES)
    runner = load(folder, gpu).runner(8)
    bias = sampling(temperature=1.0, logit_bias=[{"token_id": 1, "bias": float("nan")}])
    plan = wire.ExecutePlan(
        0, (start(1, PROMPTS[1], [0], sampling=bias), start(2, PROMPTS[1], [1]))
    )
    result = runner.execute(plan)
    assert [fault.seq_id for fault in result.faults] == [1]
    assert result.seq_ids == (2,)


def test_what_no_kernel_was_built_for_is_refused(tmp_path: Path, emulator_folder: Path) -> None:
    gpu = EmulatedGpu(emulator_folder)
    odd = write_folder(tmp_path / "odd", **SIZES | {"head_dim": 20})
    with pytest.raises(ValueError, match="head_dim is 20"):
        load(odd, gpu)
    fine = write_folder(tmp_path / "fine", **SIZES)
    with pytest.raises(ValueError, match="kv_cache_dtype is 'bfloat16', on cuda allowed"):
        load_model(fine, "cuda", kv_cache_dtype="bfloat16", gpu=gpu)


def test_without_a_gpu_it_says_so(folder: Path, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--cuda"):
        pytest.skip("this machine has one")
    with pytest.raises(ValueError, match="device cuda: "):
        load_model(folder, "cuda")
