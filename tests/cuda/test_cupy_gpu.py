"""CupyGpu itself, over a stand-in for CuPy and the driver: its launches, graphs and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from common.errors import CANNOT_WORK
from tests.cuda.test_engine import PROMPTS, SIZES, load
from tests.emulator.cupy_stand_in import StandIn
from tests.support.model_folders import write_folder
from tests.worker.plans import generate, sampling
from worker import __main__ as main
from worker.backends import cuda_device
from worker.backends.cuda_device import CupyGpu
from worker.backends.gpu import Gpu
from worker.build import load_model
from worker.warm_up import warm_up

Made = tuple[CupyGpu, StandIn]


@pytest.fixture
def made(
    emulator_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Made]]:
    leases = []

    def make(capability: str = "90", driver: int = 13_000, **more: int) -> Made:
        stand_in = StandIn(emulator_folder, capability, driver, **more)
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


def test_the_next_life_is_offered_what_the_first_was(
    made: Callable[..., Made], tmp_path: Path
) -> None:
    """CuPy's pool gives nothing back by itself, and a piece that was cut not before all of it."""
    folder = write_folder(tmp_path / "model", **SIZES)
    device, _ = made(total_bytes=24 << 20)
    loaded = load_model(folder, "cuda", "bfloat16", max_ubatch_tokens=8, gpu=device)
    offers = []
    for _ in range(2):
        offers.append(loaded.kv_cache_bytes(None))
        runner = loaded.runner(loaded.facts(offers[-1]).max_blocks)
        warm_up(runner)
        del runner
    assert offers[1] > 0.9 * offers[0]


def test_a_device_that_has_failed_ends_its_worker_with_a_line(
    made: Callable[..., Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No context outlives such an error: only a new process gets another."""
    device, stand_in = made()
    folder = write_folder(tmp_path / "model", **SIZES)
    loaded = load_model(folder, "cuda", "bfloat16", max_ubatch_tokens=24, gpu=device)
    stand_in.has_failed = True
    server = SimpleNamespace(run=lambda: loaded.kv_cache_bytes(None), interrupt=None)
    monkeypatch.setattr(main, "build_server", lambda _: server)
    monkeypatch.setattr(main, "load_or_exit", lambda *_: SimpleNamespace(log_level="warning"))
    monkeypatch.setattr(main, "signal", MagicMock())
    monkeypatch.setattr(main.os, "nice", lambda _: None)
    with pytest.raises(SystemExit, match="worker: device cuda has failed, .* 214") as ended:
        main.main()
    assert ended.value.code != CANNOT_WORK


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_device_without_room_for_graphs_draws_the_same(
    made: Callable[..., Made], tmp_path: Path, most: int
) -> None:
    """How many there are depends on what is asked: a late one is no reason for a step to fail.

    Where none has room it is not tried at every step: the device would be waited for each time.
    """
    folder = write_folder(tmp_path / "model", **SIZES)
    device, stand_in = made()
    loaded = load(folder, device, "bfloat16")
    expected = generate(loaded.runner(24), PROMPTS, 6, sampling=sampling(seed=11, temperature=0.9))
    num_replays, stand_in.most_graphs = stand_in.num_replays, most
    got = generate(loaded.runner(24), PROMPTS, 6, sampling=sampling(seed=11, temperature=0.9))
    assert got.token_ids == expected.token_ids
    assert (stand_in.num_replays > num_replays) == (most > 0)
    assert most > 0 or stand_in.num_refused == 1, "a sampler follows the graph of a pass"


def test_code_that_a_driver_does_not_know_is_told_in_a_line(
    made: Callable[..., Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PTX of a newer compiler, on a chip that has no cubin."""
    device, stand_in = made("120", 12_080)
    stand_in.knows_code = False
    monkeypatch.setattr(cuda_device, "CupyGpu", lambda: device)
    folder = write_folder(tmp_path / "model", **SIZES)
    with pytest.raises(ValueError, match="device cuda: Stand-in compute_90 .*PTX_VERSION.* 12080"):
        load_model(folder, "cuda", "bfloat16")
