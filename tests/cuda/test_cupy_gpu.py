"""CupyGpu itself, over a stand-in for CuPy and the driver: its launches, graphs and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.test_engine import PROMPTS, SIZES, load
from tests.emulator.cupy_stand_in import StandIn
from tests.support.model_folders import write_folder
from tests.worker.plans import generate, sampling
from worker.backends.cuda_device import CupyGpu
from worker.backends.gpu import Gpu

Made = tuple[CupyGpu, StandIn]


@pytest.fixture
def made(
    emulator_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Made]]:
    leases = []

    def make(capability: str = "90", driver: int = 13_000) -> Made:
        stand_in = StandIn(emulator_folder, capability, driver)
        stand_in.install(monkeypatch, tmp_path)
        device = CupyGpu()
        leases.append(device._lease)  # a worker's ends with its process
        return device, stand_in

    yield make
    for lease in leases:
        lease.close()


@pytest.mark.parametrize("chain", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}])
def test_a_model_draws_what_it_draws_on_the_emulator(
    made: Callable[..., Made], tmp_path: Path, gpu: Gpu, chain: dict[str, float]
) -> None:
    folder = write_folder(tmp_path / "model", **SIZES)
    fields = {"sampling": sampling(seed=11, **chain), "logprobs": 3}
    expected = generate(load(folder, gpu, "bfloat16").runner(24), PROMPTS, 6, **fields)
    device, stand_in = made()
    got = generate(load(folder, device, "bfloat16").runner(24), PROMPTS, 6, **fields)
    assert (got.token_ids, got.logprobs) == (expected.token_ids, expected.logprobs)
    assert stand_in.num_replays and stand_in.num_launches > stand_in.num_replays


@pytest.mark.parametrize(
    ("capability", "driver", "overlaps"),
    [("80", 13_000, False), ("89", 13_000, False), ("90", 12_020, False), ("90", 12_030, True)],
)
def test_launches_overlap_where_kernels_and_graphs_know_of_it(
    made: Callable[..., Made], capability: str, driver: int, overlaps: bool
) -> None:
    device, stand_in = made(capability, driver)
    source, target = (device.empty(32) for _ in range(2))
    device.launch("silu_mul_f32", (1, 1), 256, (target, source, np.int32(4)))
    assert stand_in.overlaps == {overlaps}
    assert device.name.startswith("Stand-in sm_")
