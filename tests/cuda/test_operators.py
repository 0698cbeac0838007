"""Every operator of the CUDA backend is a launch: none computes on the host, none reads back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos import worker as wire
from tests.cuda.test_engine import SIZES
from tests.emulator.device import EmulatedGpu
from tests.support.model_folders import write_folder
from tests.worker.plans import sampling, start
from worker.backends.base import Backend
from worker.backends.cuda import CudaBackend
from worker.backends.cuda_cache import CudaKvCache, LayerPages
from worker.backends.cuda_step import CudaStep
from worker.batch import Batch
from worker.build import load_model

HEADS, KV_HEADS, DIM, HIDDEN = 4, 2, 16, 64
NOT_OPERATORS = {
    "fingerprint", "weight_bytes", "pack_vector", "pack_linear", "pack_tied", "pack_rotary",
    "stored_keys", "to_host", "tap",
}  # fmt: skip
"""Facts, packing, and what is for whoever looks on."""
PASS = {
    "embedding", "rope_table", "rope", "attention", "attention_decode", "attention_merge",
    "attention_prefill", "linear_decode", "linear_prefill", "linear", "add_rms_norm", "silu_mul",
}  # fmt: skip


class NoReads(EmulatedGpu):
    """A device that brings nothing to the host while `is_closed`."""

    is_closed = False

    def read(self, source: Any) -> Any:
        assert not self.is_closed, "an operator reads back"
        return super().read(source)


class Scene:
    """A backend, a step of a prefill and of two decodes, and a layer's pages."""

    def __init__(self, emulator_folder: Path, dtype: str) -> None:
        self.gpu = NoReads(emulator_folder)
        self.backend = CudaBackend(self.gpu, dtype, (HEADS, KV_HEADS, DIM), 128)
        rng = np.random.default_rng(0)
        self.vector = self.backend.pack_vector(np.ones(HIDDEN, np.float32))
        self.head = self.backend.pack_vector(np.ones(DIM, np.float32))
        self.table = self.backend.pack_vector(rng.standard_normal((40, HIDDEN), np.float32))
        widths = (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM)
        self.qkv = self.linear(rng, *widths)
        self.gate_up = self.linear(rng, 96, 96)
        self.odd_gate_up = self.linear(rng, 100, 100)
        self.rotary = self.backend.pack_rotary([1.0 / (10 * i + 1) for i in range(DIM // 2)], 1.0)
        raw = self.gpu.empty(2 * 8 * KV_HEADS * 16 * DIM * (4 if dtype == "f32" else 2))
        kind = np.float32 if dtype == "f32" else np.uint16
        self.cache = LayerPages(*raw.view(kind).reshape(2, 8, KV_HEADS, 16, DIM))
        self.step: CudaStep = self.backend.begin(batch())
        self.x = self.normed()

    def linear(self, rng: np.random.Generator, *outputs: int) -> Any:
        return self.backend.pack_linear(
            [rng.standard_normal((count, HIDDEN), np.float32) for count in outputs]
        )

    def residual(self) -> Any:
        return self.backend.embedding(self.table, self.step.token_ids)

    def normed(self) -> Any:
        return self.backend.rms_norm(self.residual(), self.vector, 1e-6)

    def q(self) -> Any:
        qkv = self.backend.linear(self.x, self.qkv)
        return self.backend.rope(qkv, self.step, self.cache, HEADS, self.rotary)


def batch() -> Batch:
    """Twenty new tokens of one sequence, one of another."""
    positions = np.array([*range(20), 30], np.int32)
    tables = np.array([[0, 1], [2, 3]], np.int32)
    return Batch(
        token_ids=np.arange(21, dtype=np.int32),
        positions=positions,
        cells=np.array([*range(20), 3 * 16 + 14], np.int32),
        query_starts=np.array([0, 20, 21], np.int32),
        block_tables=tables,
        logit_rows=np.array([19, 20], np.int32),
        state_rows=np.array([3], np.int32),
        block_size=16,
    )


def head_norm(scene: Scene) -> None:
    ops = scene.backend
    qkv = ops.head_norm(ops.linear(scene.x, scene.qkv), scene.head, scene.head, HEADS, 1e-6)
    ops.rope(qkv, scene.step, scene.cache, HEADS, scene.rotary)


def silu_mul(scene: Scene) -> None:
    for linear in (scene.gate_up, scene.odd_gate_up):
        scene.backend.silu_mul(scene.backend.linear(scene.x, linear))


def gated_linear(scene: Scene) -> None:
    for linear in (scene.gate_up, scene.odd_gate_up):
        scene.backend.gated_linear(scene.x, linear)


def take_rows(scene: Scene) -> None:
    ops, rows = scene.backend, scene.step.state_rows
    residual = scene.residual()
    ops.add_rms_norm(ops.take_rows(scene.x, rows), ops.take_rows(residual, rows), scene.vector, 0)


OPERATORS: dict[str, tuple[Callable[[Scene], Any], set[str]]] = {
    "embedding": (Scene.residual, {"embedding"}),
    "rms_norm": (Scene.normed, {"embedding", "add_rms_norm"}),
    "add_rms_norm": (
        lambda s: s.backend.add_rms_norm(s.backend.linear(s.x, s.qkv), s.residual(), s.vector, 0.1),
        {"embedding", "linear", "add_rms_norm"},
    ),
    "linear": (lambda s: s.backend._logits(s.backend.linear(s.x, s.qkv)), {"linear"}),
    "head_norm": (head_norm, {"linear", "rope"}),
    "rope": (Scene.q, {"linear", "rope"}),
    "paged_attention": (
        lambda s: s.backend.paged_attention(s.q(), s.step, s.cache, 7),
        {"linear", "rope", "attention"},
    ),
    "silu_mul": (silu_mul, {"linear", "silu_mul"}),
    "gated_linear": (gated_linear, {"linear", "silu_mul"}),
    "take_rows": (take_rows, {"embedding", "add_rms_norm"}),
    "rope_shift": (
        lambda s: s.backend.rope_shift(s.cache, np.arange(3, dtype=np.int32), -2, s.rotary),
        {"rope"},
    ),
}


def kernels(launches: list[str]) -> set[str]:
    """Return the families of launched kernels."""
    families = ("add_rms_norm", "attention", "embedding", "linear", "rope", "silu_mul")
    return {family for symbol in launches for family in families if symbol.startswith(family)}


def test_the_list_is_whole() -> None:
    """A new operator must come here, and prove where it runs."""
    names = {name for name, _ in inspect.getmembers(Backend) if not name.startswith("_")}
    assert names == OPERATORS.keys() | NOT_OPERATORS


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_launches(emulator_folder: Path, name: str, dtype: str) -> None:
    """Arrays of the emulated device refuse to be computed with on the host, at any place."""
    scene = Scene(emulator_folder, dtype)
    run, expected = OPERATORS[name]
    scene.step.turns.clear()
    scene.gpu.launches.clear()
    scene.gpu.is_closed = True
    run(scene)
    assert kernels(scene.gpu.launches) == expected


def test_arrays_of_a_device_refuse_arithmetic(emulator_folder: Path) -> None:
    """So the checks here, and all tests on the emulator, can fail."""
    array = EmulatedGpu(emulator_folder).empty(64).view(np.float32)
    attempts: list[Callable[[], Any]] = [
        lambda: array + 1, lambda: np.exp(array), lambda: np.concatenate([array, array]),
        lambda: array @ array, lambda: array.sum(), lambda: array.astype(np.float64),
        lambda: array[np.array([1, 2])], lambda: array.tolist(), lambda: array.copy(),
        lambda: array.__setitem__(slice(0, 2), 0),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()


def noting(sizes: list[int], read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda source: sizes.append(source.size) or read(source)


@pytest.mark.parametrize("what", ["prefill and decode", "pooled", "drawn on the device"])
def test_a_step_reads_back_results_alone(
    tmp_path: Path, emulator_folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Tokens, logprobs and pooled states come to the host; logits stay where they are."""
    gpu = EmulatedGpu(emulator_folder)
    folder = write_folder(tmp_path / "model", **SIZES)
    loaded = load_model(folder, "cuda", "bfloat16", max_ubatch_tokens=32, gpu=gpu)
    runner = loaded.runner(8)
    assert isinstance(runner._cache, CudaKvCache)
    sizes: list[int] = []
    for name in ("read", "read_later"):
        monkeypatch.setattr(gpu, name, noting(sizes, getattr(gpu, name)))
    fields: dict[str, Any] = {"pooling": "mean"} if what == "pooled" else {}
    if what == "drawn on the device":
        fields = {"sampling": sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.1)}
    prompt = list(range(5, 25))
    gpu.launches.clear()
    runner.execute(wire.ExecutePlan(0, (start(1, prompt, (0, 1), **fields),)))
    if what != "pooled":
        runner.execute(wire.ExecutePlan(1, steps=(wire.SequenceStep(1, 1),)))
    wanted = {20 * 64} if what == "pooled" else {1}
    assert set(sizes) - {0} == wanted
    assert kernels(gpu.launches) == kernels(sorted(PASS)) - {"silu_mul"}
