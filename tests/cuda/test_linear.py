"""Linears against float64, at every width, and their bits against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.case import Case, close, f32, i32, pack_linear, rounded
from worker.backends.cuda_linears import CudaLinears, Pending
from worker.backends.cuda_weights import STORAGE, CudaLinear, from_storage, quantized, to_storage
from worker.backends.gpu import Scratch
from worker.kernels.checks import Floats
from worker.kernels.structs import linear_prefill_shared_bytes

SHAPES = [(1, 16, 32), (5, 48, 96), (37, 160, 288), (131, 272, 512)]
DTYPES = ["bf16", pytest.param("f16", marks=pytest.mark.kernels)]
WEIGHTS = ["stored", pytest.param("int8", marks=pytest.mark.kernels)]


def run(case: Case, form: str, x: Any, linear: Any, out_dtype: str) -> Any:
    """Launch one form of a linear over x [M, K]; form: "prefill" or the tiles of "decode"."""
    count, gated = len(x), form.split("_")[-1] == "gated"
    width = linear.num_padded // (2 if gated else 1)
    out = case.poisoned((count, width), out_dtype)
    sizes = (i32(count), i32(linear.num_inputs), i32(linear.num_padded))
    arguments = (out, x, linear.weight, linear.scale, linear.bias, *sizes)
    stem = "linear" if linear.scale is None else "linear_int8"
    kind, _, rest = form.partition("_")
    if kind == "prefill":
        grid = (-(-linear.num_padded // 128), -(-count // 128))
        shared_bytes = linear_prefill_shared_bytes(stem == "linear_int8")
        case.gpu.launch(f"{stem}_prefill_{rest}", grid, 256, arguments, shared_bytes)
    else:
        tiles = int(kind)
        grid = (width // 16, -(-count // (8 * tiles)))
        case.gpu.launch(f"{stem}_decode_{rest}_{tiles}", grid, 256, arguments)
    return case.gpu.read(out)


def meant(weight: Floats, dtype: str, weights: str) -> Any:
    """Return what a packed weight stands for, in float64; weights: stored or int8."""
    if weights == "int8":
        steps, scale = quantized(weight)
        return steps * scale[:, None].astype(np.float64)
    return rounded(weight, dtype).astype(np.float64)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_is_right_and_all_agree(
    case: Case, dtype: str, shape: tuple[int, int, int], weights: str
) -> None:
    num_tokens, num_outputs, num_inputs = shape
    x = case.normal(num_tokens, num_inputs)
    weight, bias = case.normal(num_outputs, num_inputs), case.normal(num_outputs)
    linear = pack_linear(case.gpu, dtype, [weight], [bias], weights == "int8")
    x_device = case.put(to_storage(x, dtype))
    expected = rounded(x, dtype) @ meant(weight, dtype, weights).T + bias
    for out_dtype in ("f32", dtype):
        forms = ["prefill", "1", "2", "4", "8"]
        name = f"{dtype}_{out_dtype}_plain"
        outs = [run(case, f"{form}_{name}", x_device, linear, out_dtype) for form in forms]
        close(from_storage(outs[0], out_dtype), expected, out_dtype, scale=num_inputs**0.5)
        for form, out in zip(forms, outs, strict=True):
            np.testing.assert_array_equal(out, outs[0], err_msg=form)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_and_up(case: Case, dtype: str, weights: str) -> None:
    x, halves = case.normal(37, 96), [case.normal(48, 96) * f32(0.1) for _ in range(2)]
    biases = [case.normal(48) for _ in range(2)]
    linear = pack_linear(case.gpu, dtype, halves, biases, weights == "int8")
    assert linear.is_gated
    x_device = case.put(to_storage(x, dtype))
    gate, up = (
        rounded(x, dtype) @ meant(w, dtype, weights).T + b
        for w, b in zip(halves, biases, strict=True)
    )
    expected = gate / (1 + np.exp(-gate)) * up
    name = f"{dtype}_{dtype}_gated"
    forms = ("prefill", "1", "2", "4")
    outs = [run(case, f"{form}_{name}", x_device, linear, dtype) for form in forms]
    close(from_storage(outs[0], dtype), expected, dtype, scale=2)
    for out in outs:
        np.testing.assert_array_equal(out, outs[0])


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_token_does_not_depend_on_the_others(case: Case, weights: str) -> None:
    linear = pack_linear(case.gpu, "bf16", [case.normal(32, 256)], [], weights == "int8")
    x = to_storage(case.normal(70, 256), "bf16")
    whole = run(case, "prefill_bf16_f32_plain", case.put(x), linear, "f32")
    for first, last in ((0, 1), (3, 12), (12, 70)):
        part = run(case, "8_bf16_f32_plain", case.put(x[first:last]), linear, "f32")
        np.testing.assert_array_equal(part, whole[first:last])


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_int8_is_itself(case: Case, dtype: str) -> None:
    """Each value at each place of a tile, times one and nothing: widened exactly, moved nowhere."""
    steps = np.arange(16 * 32).reshape(16, 32) % 255 - 127
    steps[:, 0] = 127  # the scale of each output is one
    linear = pack_linear(case.gpu, dtype, [steps.astype(np.float32)], (), True)
    x = case.put(to_storage(np.eye(32, dtype=np.float32), dtype))
    for form in ("prefill", "1"):
        out = run(case, f"{form}_{dtype}_f32_plain", x, linear, "f32")
        np.testing.assert_array_equal(out, steps.T)


@pytest.mark.parametrize("weights", ["stored", "int8"])
def test_float32(case: Case, weights: str) -> None:
    x, weight, bias = case.normal(11, 40), case.normal(7, 40), case.normal(7)
    linear = pack_linear(case.gpu, "f32", [weight], [bias], weights == "int8")
    out = case.poisoned((11, 7), "f32")
    arguments = (out, case.put(x), linear.weight, linear.scale, linear.bias)
    symbol = "linear_f32" if weights == "stored" else "linear_f32_int8"
    case.gpu.launch(symbol, (2, 2), 128, (*arguments, i32(11), i32(40), i32(7)))
    close(case.get(out), x @ meant(weight, "f32", weights).T + bias, "f32", scale=8)


def test_scales_are_those_of_the_rule() -> None:
    """The largest size is 127 steps, each value the nearest step; nothing overflows."""
    weight = np.array([[1, -2, 0.5, 1.99], [0, 0, 0, 0], [-127, 127, 3, -1e-40]], np.float32)
    steps, scale = quantized(weight)
    np.testing.assert_array_equal(scale, np.float32([2, 0, 127]) / np.float32(127))
    np.testing.assert_array_equal(steps, [[64, -127, 32, 126], [0] * 4, [-127, 127, 3, 0]])


def test_bytes_on_the_device_are_counted(case: Case) -> None:
    weight, bias = case.normal(40, 64), case.normal(40)
    assert pack_linear(case.gpu, "bf16", [weight], [bias]).num_bytes == 48 * 64 * 2 + 48 * 4
    assert pack_linear(case.gpu, "bf16", [weight], [bias], True).num_bytes == 48 * (64 + 4 + 4)


def test_storage_rounds_to_nearest_even() -> None:
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -(2.0**-130), np.inf], np.float32)
    np.testing.assert_array_equal(
        from_storage(to_storage(values, "bf16"), "bf16"),
        np.array([1, 1, 1 + 2**-6, -(2.0**-130), np.inf], np.float32),
    )
    assert STORAGE["f16"] is np.uint16


def test_a_gate_may_have_as_many_rows_as_a_step() -> None:
    """A grid has at most 65,535 blocks in its second and third direction; a step 2^20 tokens."""
    grids: list[tuple[int, ...]] = []

    class Remembering:
        def empty(self, num_bytes: int) -> Any:
            return np.empty(num_bytes, np.uint8)

        def launch(self, symbol: str, grid: tuple[int, ...], *rest: Any) -> None:
            if symbol.startswith("silu_mul"):
                grids.append(grid)

    gpu: Any = Remembering()
    linear = CudaLinear(np.empty(0), None, None, 32, 40, 40, False)
    pending = Pending(np.empty((1 << 20, 32), np.float32), linear)
    CudaLinears(gpu, "f32").silu_mul(Scratch(gpu), pending)
    assert [size for grid in grids for size in grid[1:]] == [1]
