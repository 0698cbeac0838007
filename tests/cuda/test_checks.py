"""The checks of the kernels, on sound sources and on planted faults: each fault must be found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cuda import scenes
from tests.emulator import KERNELS, EmulatorError
from tests.emulator.device import EmulatedGpu
from tests.emulator.recording import Recording, replay

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(900)]
SEEDS = (1, 2, 3)


class Fault(NamedTuple):
    """`old` becomes `new` in a source; `finder` is who must see it in `scene`.

    stem: of a `.cu` file, or the whole name of another.
    """

    stem: str
    old: str
    new: str
    scene: str
    finder: str


FAULTS = {
    "a shared index out of bounds": Fault(
        "rms_norm",
        "parts[threadIdx.x >> 5] = s",
        "parts[(threadIdx.x >> 5) + 1] = s",
        "rms_norm",
        "address",
    ),
    "a global index out of bounds": Fault(
        "silu_mul",
        "if (i >= width) return;",
        "if (i > width) return;",
        "small",
        "address",
    ),
    "a write past the pages": Fault(
        "rope",
        "if (head >= all) return;",
        "",
        "rope",
        "address",
    ),
    "no barrier before the sum of warps": Fault(
        "rms_norm",
        "  __syncthreads();\n  float total",
        "  float total",
        "rms_norm",
        "thread",
    ),
    "no barrier before the sum of segments": Fault(
        "linear",
        "  __syncthreads();\n  for (int i = threadIdx.x; i < 16",
        "  for (int i = threadIdx.x; i < 16",
        "linear",
        "thread",
    ),
    "no barrier before a stage is filled again": Fault(
        "paged_attention",
        "    __syncthreads();  // before the stage is filled again\n",
        "",
        "attention",
        "thread",
    ),
    "no barrier between two digits": Fault(
        "sampling",
        "    wanted = tables.found[1];\n    __syncthreads();",
        "    wanted = tables.found[1];",
        "sampling",
        "thread",
    ),
    "a wait for the wrong group": Fault(
        "linear",
        "copy_async_wait<STAGES - 2>",
        "copy_async_wait<STAGES - 1>",
        "linear",
        "result",
    ),
    "swapped fragments": Fault(
        "linear",
        "{top.x, bottom.x, top.y, bottom.y}",
        "{bottom.x, top.x, top.y, bottom.y}",
        "linear",
        "result",
    ),
    "a forgotten segment": Fault(
        "linear",
        "segment ? total[i][j][c] + sum[i][j][c] : sum[i][j][c];\n            sum",
        "sum[i][j][c];\n            sum",
        "linear",
        "result",
    ),
    "no barrier before rows are gathered in a stage": Fault(
        "linear",
        "    __syncthreads();  // nobody reads a stage, or the rows before these, any more\n",
        "",
        "linear",
        "thread",
    ),
    "rows of tokens that are not there": Fault(
        "linear",
        "if (first_token + first + token < num_tokens && n < N / PARTS)",
        "if (n < N / PARTS)",
        "linear",
        "address",
    ),
    "the scale of another output": Fault(
        "linear",
        "__fmaf_rn(sum, scale[n], bias[n])",
        "__fmaf_rn(sum, scale[n & ~1], bias[n])",
        "linear_int8",
        "result",
    ),
    "the wrong half of the inputs": Fault(
        "linear",
        "widen<T>(stored[0].y, top.z, top.w)",
        "widen<T>(stored[0].x, top.z, top.w)",
        "linear_int8",
        "result",
    ),
    "bytes in their plain order": Fault(
        "device.cuh",
        "widen_two<T>(bytes >> 8)",
        "widen_two<T>(bytes >> 16)",
        "linear_int8",
        "result",
    ),
    "a sign that is lost": Fault(
        "device.cuh",
        "masked_or<0x00800080u, NEGATIVE>",
        "masked_or<0x00000080u, NEGATIVE>",
        "linear_int8",
        "result",
    ),
    "a stage of int8 too short": Fault(
        "linear",
        "constexpr int STAGE_BYTES = 8 * TILE_BYTES<W> + 128",
        "constexpr int STAGE_BYTES = 7 * TILE_BYTES<W> + 128",
        "linear_int8",
        "any",
    ),
    "a table read in the order of its inputs": Fault(
        "embedding",
        "i % 2 * 2 + i / 2 % 2",
        "i % 4",
        "small",
        "result",
    ),
    "a product left out": Fault(
        "ceilings",
        "i < 32; i++) mma<bf16>",
        "i < 31; i++) mma<bf16>",
        "ceilings",
        "result",
    ),
    "no barrier before the ones are read": Fault(
        "ceilings",
        "  __syncthreads();\n  float d[128]",
        "  float d[128]",
        "ceilings",
        "thread",
    ),
    "a key too many": Fault(
        "paged_attention",
        "key_position > position ||",
        "key_position > position + 1 ||",
        "attention",
        "result",
    ),
    "values beyond the end": Fault(
        "paged_attention",
        "position < num_keys && chunk",
        "position < num_keys + 1 && chunk",
        "attention",
        "result",
    ),
    "the pages of another head": Fault(
        "rope",
        "page * heads.num_kv_heads + kv_head",
        "page * heads.num_kv_heads",
        "rope",
        "result",
    ),
    "a page of another place": Fault(
        "page_copy",
        "(uint64_t(blockIdx.x) * gridDim.y + blockIdx.y) * chunks",
        "(uint64_t(blockIdx.y) * gridDim.x + blockIdx.x) * chunks",
        "small",
        "result",
    ),
    "lanes that part": Fault(
        "rms_norm",
        "squares = warp_sum(squares);",
        "if (threadIdx.x & 1) squares = warp_sum(squares);",
        "rms_norm",
        "emulator",
    ),
    "barriers that part": Fault(
        "rms_norm",
        "  __syncthreads();\n  float total",
        "  if (threadIdx.x < 32) __syncthreads();\n  float total",
        "rms_norm",
        "any",
    ),
    "copies nobody waits for": Fault(
        "paged_attention",
        "    copy_async_wait<1>();\n    __syncthreads();\n    add_unit<T, D>",
        "    __syncthreads();\n    add_unit<T, D>",
        "attention",
        "any",
    ),
}


def planted(fault: Fault, folder: Path) -> Path:
    """Return a copy of the sources with the fault in it."""
    for path in KERNELS.glob("*.cu*"):
        shutil.copy(path, folder)
    source = folder / (fault.stem if "." in fault.stem else f"{fault.stem}.cu")
    text = source.read_text()
    assert fault.old in text
    source.write_text(text.replace(fault.old, fault.new))
    return folder


def record(name: str, emulator_folder: Path) -> Recording:
    """Play a scene on the sound kernels and return its launches."""
    gpu = EmulatedGpu(emulator_folder)
    gpu.recording = Recording()
    scenes.play(name, gpu)
    return gpu.recording


@pytest.mark.parametrize("name", scenes.SCENES)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sound_kernels_are_clean(
    name: str, sanitizer: str, emulator_folder: Path, tmp_path: Path
) -> None:
    assert replay(record(name, emulator_folder), sanitizer, tmp_path) == ""


@pytest.mark.parametrize("name", scenes.SCENES)
def test_any_schedule_gives_the_same(
    name: str, emulator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in SEEDS:
        monkeypatch.setenv("EMULATOR_SEED", str(seed))
        scenes.play(name, EmulatedGpu(emulator_folder))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, emulator_folder: Path, tmp_path: Path) -> None:
    fault = FAULTS[name]
    kernels = planted(fault, tmp_path)
    if fault.finder in ("address", "thread"):
        recording = record(fault.scene, emulator_folder)
        report = replay(recording, fault.finder, tmp_path, kernels)
        wanted = "AddressSanitizer" if fault.finder == "address" else "data race"
        assert wanted in report
        return
    kinds = {"result": AssertionError, "emulator": EmulatorError}
    with pytest.raises(kinds.get(fault.finder, (AssertionError, EmulatorError))):
        scenes.play(fault.scene, EmulatedGpu(tmp_path, kernels))
