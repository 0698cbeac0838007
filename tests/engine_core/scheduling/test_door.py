"""The engine's door: what no tier above should send is refused with its field, and harms nobody."""

from __future__ import annotations

from array import array

import pytest
from msgspec.structs import replace

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.scheduler import Scheduler
from protos.limits import MAX_REQUEST_ID_CHARS
from protos.worker import Add, Limits
from tests.engine_core.scheduling.test_scheduler import new_scheduler

GOOD = Add(1, 5, "r", array("I", [1, 2, 3]).tobytes(), Limits(9), b"")


def refused(scheduler: Scheduler, add: Add) -> tuple[str, str, str]:
    scheduler.add(add, 0.0)
    (event,) = scheduler.take_events()
    assert event.finish is not None and event.slot == add.slot
    assert scheduler.num_waiting == 0
    return event.finish.error_message, event.finish.error_param, event.finish.error_code


@pytest.mark.parametrize(
    ("add", "why", "param"),
    [
        (
            replace(GOOD, limits=Limits(9, stop_token_ids=(*range(513),))),
            "at most 512 stop",
            "stop_token_ids",
        ),
        (
            replace(GOOD, request_id="r" * (MAX_REQUEST_ID_CHARS + 1)),
            "longer than 128",
            "request_id",
        ),
        (replace(GOOD, prompt_token_ids=b"torn!"), "columns of 32-bit", "prompt_token_ids"),
        (
            replace(GOOD, prompt_token_ids=array("I", [1, 100, 2]).tobytes()),
            "token id 100 is outside",
            "prompt_token_ids",
        ),
        (replace(GOOD, resumed_token_ids=(b"torn!",)), "columns of 32-bit", "prompt_token_ids"),
        (
            replace(GOOD, resumed_token_ids=(b"", b"")),
            "2 resumed outputs for 1",
            "resumed_token_ids",
        ),
        (
            replace(GOOD, resumed_token_ids=(array("I", [100]).tobytes(),)),
            "token id 100 is outside",
            "resumed_token_ids",
        ),
        (
            replace(GOOD, limits=Limits(9, stop_token_ids=(100,))),
            "token id 100 is outside",
            "stop_token_ids",
        ),
        (replace(GOOD, limits=Limits(2, 3)), "3 > 2", "min_tokens"),
        (replace(GOOD, limits=Limits(9, kind="paint")), "not paint", "kind"),
        (replace(GOOD, limits=Limits(9, kind="embed", pooling="max")), "got max", "pooling"),
        (replace(GOOD, limits=Limits(9, n=2, kind="embed")), "one choice", "n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_refused(add: Add, why: str, param: str) -> None:
    scheduler = new_scheduler()
    if add.limits.n > 1:
        scheduler.add(add, 0.0)
        events = scheduler.take_events()
        assert [event.slot for event in events] == [5, 6]
        finish = events[0].finish
        assert finish is not None and why in finish.error_message and finish.error_param == param
        return
    message, field, _ = refused(scheduler, add)
    assert why in message and field == param


def test_as_many_as_may_be_are_taken() -> None:
    scheduler = new_scheduler()
    whole = array("I", [99]).tobytes()
    stop_ids = tuple(i % 100 for i in range(512))
    limits = Limits(9, 9, stop_ids)
    add = replace(GOOD, request_id="r" * MAX_REQUEST_ID_CHARS, limits=limits)
    scheduler.add(replace(add, resumed_token_ids=(whole,)), 0.0)
    assert scheduler.take_events() == [] and scheduler.num_waiting == 1


def test_a_model_without_a_head_embeds_and_writes_no_text() -> None:
    scheduler = Scheduler(
        num_blocks=8, block_size=4, vocab_size=100, max_model_len=20,
        bounds=Bounds(4, 8, 8, has_head=False), prefix_key=None,
    )  # fmt: skip
    assert refused(scheduler, GOOD)[1:] == ("model", "model_embeds_only")
    scoring = replace(GOOD, limits=Limits(9, kind="score", prompt_logprobs=0))
    assert refused(scheduler, scoring)[1:] == ("model", "model_embeds_only")
    scheduler.add(replace(GOOD, limits=Limits(9, kind="embed")), 0.0)
    assert scheduler.take_events() == [] and scheduler.num_waiting == 1
