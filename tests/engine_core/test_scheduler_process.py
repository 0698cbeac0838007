"""What a scheduler is bounded by: the setting, the model and the KV capacity."""

from __future__ import annotations

import logging
import os
import signal
from array import array
from collections.abc import Iterator

import msgspec
import pytest

from engine_core import scheduler_process
from engine_core.front_link import ZmqFrontLink
from engine_core.loop import WorkerLost
from engine_core.scheduler_process import SchedulerConfig, main, new_scheduler
from protos.worker import Add, Limits, ModelFacts, StepResult


def config(max_model_len: int) -> SchedulerConfig:
    return SchedulerConfig(
        replica=1, parent_pid=1, front_address="", worker_host="", world_size=1, max_num_seqs=4,
        max_num_batched_tokens=64, max_model_len=max_model_len, max_waiting=8, tenants={},
        prefix_cache=True, join_timeout_s=1.0, step_timeout_s=1.0, worker_timeout_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "num_blocks", "served"),
    [(0, 64, 512), (512, 32, 512), (9000, 64, 512), (400, 20, 320), (128, 64, 128)],
)
def test_a_length_that_is_not_served_is_told(
    caplog: pytest.LogCaptureFixture, asked: int, num_blocks: int, served: int
) -> None:
    facts = ModelFacts(1000, 512, "twin", "m", 16, num_blocks)
    with caplog.at_level(logging.WARNING):
        assert new_scheduler(config(asked), facts, num_blocks).max_model_len == served
    told = [record.message for record in caplog.records]
    if asked <= served:
        assert told == []
    else:
        assert told == [
            f"max_model_len is {asked}, served are {served} tokens: the model has 512 positions, "
            f"the KV cache room for {num_blocks * 16}"
        ]


@pytest.mark.parametrize(("prefix_cache", "num_found"), [(True, 32), (False, 0)])
def test_what_was_computed_is_found_again_unless_that_is_off(
    prefix_cache: bool, num_found: int
) -> None:
    asked = msgspec.structs.replace(config(0), prefix_cache=prefix_cache)
    scheduler = new_scheduler(asked, ModelFacts(1000, 512, "twin", "m", 16, 64), 64)
    for slot in (1, 2):
        scheduler.add(Add(1, slot, "r", array("I", [9] * 33).tobytes(), Limits(1), b""), 0.0)
        plan = scheduler.schedule(0.0)
        assert plan is not None
        result = StepResult(plan.step_id, (plan.starts[0].seq_id,), (1,), (7,))
        scheduler.apply(result, 0.0)
    assert scheduler.tally.num_prefix_hits == num_found


@pytest.fixture
def our_signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("our_signals")
def test_a_stop_during_the_end_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front sends SIGTERM as soon as it hears ReplicaLost: often in the middle of the end."""
    close = ZmqFrontLink.close

    def lose(*_: object) -> None:
        raise WorkerLost("rank 0 disconnected")

    def stop_and_close(link: ZmqFrontLink) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        close(link)

    monkeypatch.setattr(scheduler_process, "die_with_parent", lambda _: None)
    monkeypatch.setattr(scheduler_process, "serve", lose)
    monkeypatch.setattr("common.logs.setup", lambda *_: None)
    monkeypatch.setattr(ZmqFrontLink, "close", stop_and_close)
    asked = msgspec.structs.replace(
        config(0), front_address="inproc://front", worker_host="127.0.0.1"
    )
    assert main(msgspec.json.encode(asked).decode()) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # also while Python itself ends
