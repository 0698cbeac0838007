"""What a scheduler is bounded by: the setting, the model and the KV capacity."""

from __future__ import annotations

import logging

import pytest

from engine_core.scheduler_process import SchedulerConfig, new_scheduler
from protos.worker import ModelFacts


def config(max_model_len: int) -> SchedulerConfig:
    return SchedulerConfig(
        replica=1, parent_pid=1, front_address="", worker_host="", world_size=1, max_num_seqs=4,
        max_num_batched_tokens=64, max_model_len=max_model_len, max_waiting=8, tenants={},
        prefix_cache=True, join_timeout_s=1.0, step_timeout_s=1.0, worker_timeout_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "num_blocks", "served"),
    [(0, 64, 512), (512, 32, 512), (9000, 64, 512), (400, 20, 320)],
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
