"""Weights on their way to a device: strip by strip, one ahead, the same bytes as all at once."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.cuda.case import Case, pack_linear
from tests.emulator.device import EmulatedGpu
from worker.backends import cuda_loading
from worker.backends.cuda_loading import Loading
from worker.backends.cuda_weights import interleaved, pack_tiles, quantized, to_storage
from worker.backends.gpu import Gpu
from worker.errors import KernelError
from worker.kernels.checks import to_float32
from worker.quantized.weight import QuantizedWeight

Array = np.ndarray[Any, Any]
FORMS = {
    "three below each other": ((70, 33, 40), False),
    "a gate and its other half": ((96, 96), True),
    "two that are no pair": ((40, 40), False),
    "one": ((152,), False),
}


def stored(values: Array, kind: str) -> Any:
    """Return what a file of this type holds."""
    if kind == "quantised":
        return QuantizedWeight(values.shape, lambda first, end: values[first:end])
    return {"f32": values, "f16": values.astype(np.float16)}.get(kind, to_storage(values, "bf16"))


@pytest.fixture
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 outputs, the fewest there may be."""
    monkeypatch.setattr(cuda_loading, "STRIP_BYTES", 1)


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "quantised"])
@pytest.mark.parametrize(("dtype", "is_int8"), [("bf16", False), ("f16", False), ("f16", True)])
@pytest.mark.parametrize("form", FORMS)
def test_strips_are_the_bytes_of_the_whole(
    case: Case, kind: str, dtype: str, is_int8: bool, form: str
) -> None:
    widths, is_gated = FORMS[form]
    weights = [stored(case.normal(width, 64), kind) for width in widths]
    biases = [
        stored(case.normal(width), "f16" if kind == "quantised" else kind) for width in widths
    ]
    linear = pack_linear(case.gpu, dtype, weights, biases, is_int8)
    whole = np.concatenate([to_float32(np.asarray(weight)) for weight in weights])
    values, scale = quantized(whole) if is_int8 else (to_storage(whole, dtype), None)
    packed = pack_tiles(interleaved(values) if is_gated else values)
    assert linear.is_gated == is_gated and linear.num_padded == len(packed) * 16
    assert case.gpu.read(linear.weight).tobytes() == packed.tobytes()
    for vector, expected in ((linear.scale, scale), (linear.bias, np.concatenate(
            [to_float32(bias) for bias in biases]))):  # fmt: skip
        assert (vector is None) == (expected is None)
        if vector is not None and expected is not None:
            padded = np.pad(expected, (0, linear.num_padded - len(expected)))
            padded = interleaved(padded) if is_gated else padded
            np.testing.assert_array_equal(case.gpu.read(vector), padded)


@pytest.mark.usefixtures("small_strips")
def test_rows_of_float32(case: Case) -> None:
    weights = [case.normal(40, 24), stored(case.normal(30, 24), "bf16")]
    linear = pack_linear(case.gpu, "f32", weights)
    expected = np.concatenate([to_float32(weight) for weight in weights])
    np.testing.assert_array_equal(case.gpu.read(linear.weight), expected)


def test_the_host_holds_a_few_strips_at_most(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MiB of weights pass through; what the host takes meanwhile depends on the strip alone."""
    monkeypatch.setattr(cuda_loading, "STRIP_BYTES", 2**20)
    loading = Loading(gpu)
    weights = [np.full((4096, 1024), i, np.uint16) for i in range(4)]
    for weight in weights:
        loading.linear("bf16", [weight], [], False)
    tracemalloc.start()
    try:
        loading.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2**18 < peak < 6 * 2**20
    assert loading.seconds.keys() == {"read", "pack", "send"}
    assert min(loading.seconds.values()) > 0


@pytest.mark.usefixtures("small_strips")
def test_the_next_strip_is_packed_while_one_is_sent(
    emulator_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = [threading.Event() for _ in range(4)]
    sent: list[int] = []
    pack = cuda_loading._packed

    def noting(rows: Array, plan: cuda_loading.Plan) -> tuple[Array, Array | None]:
        assert threading.current_thread() is not threading.main_thread()
        next(event for event in packed if not event.is_set()).set()
        return pack(rows, plan)

    class Slow(EmulatedGpu):
        def write(self, target: Array, source: Array) -> None:
            sent.append(len(sent))
            assert packed[min(len(sent), 3)].wait(20), "nobody packs meanwhile"
            super().write(target, source)

    monkeypatch.setattr(cuda_loading, "_packed", noting)
    linear = pack_linear(Slow(emulator_folder), "bf16", [np.ones((128, 32), np.float32)])
    assert sent == [0, 1, 2, 3] and linear.num_padded == 128


def test_what_goes_wrong_is_raised(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading(gpu)
    with pytest.raises(KernelError, match="24 inputs, the CUDA kernels take multiples of 32"):
        loading.linear("bf16", [np.ones((16, 24), np.float32)], [], False)
    monkeypatch.setattr(cuda_loading, "pack_tiles", lambda _: 1 / 0)
    loading.linear("bf16", [np.ones((16, 32), np.float32)], [], False)
    with pytest.raises(ZeroDivisionError):
        loading.finish()
