"""Questions to one scheduler: what they say is what the books say, and nothing changes by them."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from engine_core.answers import answer
from engine_core.scheduling.bounds import Bounds, TenantLimits
from engine_core.scheduling.scheduler import Scheduler
from protos.worker import Add, Limits, Query, StepResult


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(
        num_blocks=8, block_size=4, vocab_size=100, max_model_len=64, bounds=Bounds(1, 64, 8),
        prefix_key=b"m",
    )  # fmt: skip


def add(slot: int, prompt: list[int], **limits: Any) -> Add:
    return Add(1, slot, f"r{slot}", array("I", prompt).tobytes(), Limits(9, **limits), b"")


def ask(scheduler: Scheduler, kind: str, /, now: float = 0.0, **body: Any) -> Any:
    said = answer(scheduler, Query(3, 4, kind, json.dumps(body).encode()), now)
    assert (said.session, said.query_id) == (3, 4)
    assert scheduler.check() == ""
    return f"{said.error_kind}: {said.error_message}" if said.error_kind else json.loads(said.body)


def step(scheduler: Scheduler, *tokens: int, now: float = 0.0) -> None:
    plan = scheduler.schedule(now)
    assert plan is not None
    ids = [row.seq_id for row in (*plan.starts, *plan.steps)]
    scheduler.apply(StepResult(plan.step_id, tuple(ids), (1,) * len(ids), tokens), now)


def test_how_a_request_stands(scheduler: Scheduler) -> None:
    scheduler.add(add(1, [1, 2, 3, 4, 5], tenant="a", n=2), 1.0)
    step(scheduler, 7, now=2.0)
    told = ask(scheduler, "request_state", now=4.0, request_id="r1", tenant="a")
    first, second = told["choices"]
    assert first == {
        "choice": 0, "state": "running", "num_prompt_tokens": 5, "num_cached_tokens": 0,
        "num_computed_tokens": 5, "num_output_tokens": 1, "num_blocks": 2, "queue_place": None,
        "num_preemptions": 0, "age_s": 3.0,
    }  # fmt: skip
    assert (second["state"], second["queue_place"], second["choice"]) == ("waiting", 1, 1)
    assert ask(scheduler, "request_state", request_id="r1", tenant="b") == {"choices": []}
    assert ask(scheduler, "request_state", request_id="r2", tenant="a") == {"choices": []}
    scheduler.pause(1, 2, 0.0)
    told = ask(scheduler, "request_state", request_id="r1", tenant="a")
    assert [choice["state"] for choice in told["choices"]] == ["running", "paused"]


def test_how_a_request_would_fare(scheduler: Scheduler) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    (idle,) = ask(scheduler, "explain", token_ids=prompt, max_tokens=50)["replicas"]
    assert idle == {
        "num_prompt_tokens": 9, "max_total_tokens": 32, "num_cached_tokens": 0,
        "num_blocks_needed": 3, "num_blocks_free": 8, "queue_place": 1, "num_waiting": 0,
        "num_running": 0, "estimated_start_s": 0.0, "refused": None,
    }  # fmt: skip
    scheduler.add(add(1, prompt, tenant="a"), 0.0)
    step(scheduler, 7)
    scheduler.add(add(2, [9] * 9, tenant="a"), 0.0)
    (busy,) = ask(scheduler, "explain", token_ids=prompt, max_tokens=9, tenant="a")["replicas"]
    assert (busy["num_cached_tokens"], busy["num_blocks_needed"]) == (8, 1)
    assert (busy["queue_place"], busy["num_waiting"], busy["num_running"]) == (2, 1, 1)
    assert busy["estimated_start_s"] is None
    told = {"token_ids": prompt, "tenant": "a", "prompt_logprobs": 1}
    (told_all,) = ask(scheduler, "explain", **told)["replicas"]
    assert told_all["num_cached_tokens"] == 0, "who tells of a prompt's tokens computes them"
    (long,) = ask(scheduler, "explain", token_ids=prompt, max_tokens=100)["replicas"]
    assert long["refused"]["code"] == "context_length_exceeded"
    (cut,) = ask(scheduler, "explain", token_ids=prompt, max_tokens=64)["replicas"]
    assert cut["refused"] is None and cut["max_total_tokens"] == 32, "as it is served"
    full = {"token_ids": [1] * 32, "max_tokens": 1}
    assert ask(scheduler, "explain", **full)["replicas"][0]["refused"]
    assert ask(scheduler, "explain", kind="score", **full)["replicas"][0]["refused"] is None
    (kept,) = ask(scheduler, "explain", token_ids=prompt, max_tokens=100, n_keep=1)["replicas"]
    assert kept["refused"] is None, "it goes on beyond the context"
    scheduler.abort(1, 2, 10.0)
    scheduler.add(add(2, [9] * 9, tenant="a"), 10.0)
    scheduler.abort(1, 2, 13.0)
    (later,) = ask(scheduler, "explain", token_ids=prompt, max_tokens=9, tenant="a")["replicas"]
    assert later["estimated_start_s"] == 3.0, "a seat is free every three seconds"


def test_only_what_the_next_step_has_room_for_starts_at_once() -> None:
    scheduler = Scheduler(
        num_blocks=8, block_size=4, vocab_size=100, max_model_len=64,
        bounds=Bounds(4, 64, 8), prefix_key=None,
    )  # fmt: skip

    def starts_at_once(*prompt: int) -> bool:
        asked = {"token_ids": prompt, "max_tokens": 2, "tenant": "a"}
        return ask(scheduler, "explain", **asked)["replicas"][0]["estimated_start_s"] == 0

    scheduler.add(add(1, [1] * 21, tenant="a"), 0.0)
    step(scheduler, 7)
    assert starts_at_once(*[2] * 7)
    assert not starts_at_once(*[2] * 8), "two blocks are free"
    scheduler.add(add(2, [2] * 9, tenant="a"), 0.0)
    assert not starts_at_once(*[2] * 3), "it would fit, but another comes first"


def test_a_quiet_hour_makes_no_estimate_longer(scheduler: Scheduler) -> None:
    for at in (0.0, 3600.0):
        for slot in (1, 2, 3):
            scheduler.add(add(slot, [slot] * 9, tenant="a"), at)
        for slot in (1, 2, 3):
            scheduler.abort(1, slot, at + 2.0 * slot)
    scheduler.add(add(1, [7] * 9, tenant="a"), 3610.0)
    step(scheduler, 7)
    (later,) = ask(scheduler, "explain", token_ids=[8] * 9, max_tokens=9, tenant="a")["replicas"]
    assert later["estimated_start_s"] == pytest.approx(2.0)


def test_why_a_request_would_be_refused(scheduler: Scheduler) -> None:
    (row,) = ask(scheduler, "explain", token_ids=[1] * 40, max_tokens=9)["replicas"]
    assert row["refused"]["code"] == "kv_cache_too_small"
    assert "kv_cache_memory" in row["refused"]["message"]


def test_a_tenants_own_limits_count_in_how_a_request_would_fare() -> None:
    tenants = {"a": TenantLimits(seqs=1, waiting=1), "b": TenantLimits(blocks=4)}
    scheduler = Scheduler(
        num_blocks=8, block_size=4, vocab_size=100, max_model_len=64,
        bounds=Bounds(4, 64, 8, tenants), prefix_key=b"m",
    )  # fmt: skip

    def asked(tenant: str, token: int) -> Any:
        told = {"token_ids": [token] * 9, "max_tokens": 2, "tenant": tenant}
        return ask(scheduler, "explain", **told)["replicas"][0]

    assert asked("a", 1)["estimated_start_s"] == asked("b", 1)["estimated_start_s"] == 0
    for slot, tenant in ((1, "a"), (2, "b")):
        scheduler.add(add(slot, [slot] * 5, tenant=tenant), 0.0)
    step(scheduler, 7, 7)
    assert asked("c", 3)["estimated_start_s"] == 0
    for tenant in "ab":
        assert asked(tenant, 3)["estimated_start_s"] is None, "its seat or its blocks are taken"
    assert asked("a", 3)["refused"] is None
    scheduler.add(add(3, [4] * 5, tenant="a"), 0.0)
    assert asked("a", 3)["refused"]["code"] == "queue_full"


def test_the_cache_is_counted_and_dropped(scheduler: Scheduler) -> None:
    for slot in (1, 2):
        scheduler.add(add(slot, [1, 2, 3, 4, 5]), 0.0)
        step(scheduler, 7)
        scheduler.abort(1, slot, 0.0)
    (cache,) = ask(scheduler, "cache_statistics")["replicas"]
    assert cache == {
        "layout": "block", "block_size": 4,
        "blocks": {"total": 8, "free": 7, "cached": 1, "used": 0},
        "hits": 1, "misses": 1, "tokens_looked_up": 10, "tokens_saved": 4,
    }  # fmt: skip
    assert ask(scheduler, "cache_reset") == {"replicas": [{"num_blocks_dropped": 1}]}
    assert ask(scheduler, "cache_statistics")["replicas"][0]["blocks"]["free"] == 8


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("weather", {}, "weather: no such question; there are request_state, explain"),
        ("request_state", {}, "request_state: Object missing required field `request_id`"),
        ("cache_reset", {"all": True}, "cache_reset: Object contains unknown field `all`"),
        ("explain", {"token_ids": [1], "cache_salt": "xy"}, "cache_salt is not hexadecimal"),
        ("explain", {"token_ids": [-1]}, "must be 32-bit values"),
    ],
)
def test_a_senseless_question(
    scheduler: Scheduler, kind: str, body: dict[str, Any], why: str
) -> None:
    said = ask(scheduler, kind, **body)
    assert said.startswith("InvalidRequest: ") and why in said
