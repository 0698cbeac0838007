"""Ends before an engine has a request, and without one; whose turn it is."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from protos.common_pb2 import EMBED, EngineState, FinishReason, Limits
from protos.tokenizer_pb2 import ChatInput, TextOptions
from tests.support.fake_engine import FakeLink, column, finish, ready_state
from tests.support.tiny_tokenizer import write_tiny_folder
from tests.tokenizer_service.stage import Build, request
from tokenizer_service.text_model import ENCODE_THREADS
from tokenizer_service.ticket import Ticket


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "other"}, "NotFound", "model"),
        ({"prompt": ""}, "InvalidRequest", "prompt"),
        ({"prompt": "x" * 300}, "InvalidRequest", "prompt"),
        ({"limits": Limits(max_tokens=300)}, "InvalidRequest", "max_tokens"),
        ({"prompt_token_ids": column([512])}, "InvalidRequest", "prompt"),
        ({"text": TextOptions(stop_token_ids=[512])}, "InvalidRequest", "stop_token_ids"),
        ({"chat": ChatInput(messages_json=b"[]")}, "InvalidRequest", "messages"),
        ({"prompt": "", "limits": Limits(kind=EMBED)}, "InvalidRequest", "input"),
        ({"prompt": "x" * 300, "limits": Limits(kind=EMBED)}, "InvalidRequest", "input"),
    ],
)
async def test_refusals_end_every_choice_once(
    build: Build, fields: dict[str, Any], kind: str, param: str
) -> None:
    stage = build()
    limits = Limits(n=2)
    limits.MergeFrom(fields.pop("limits", Limits()))
    await stage.submit(4, limits=limits, **fields)
    assert set(stage.gateway.finishes) == {4, 5} and not stage.link.adds
    for end in stage.gateway.finishes.values():
        assert (end.reason, end.error.kind) == (FinishReason.IGNORED, kind)
        assert end.error.param == param and end.error.message


async def test_a_gateway_that_breaks_the_rules_of_slots_is_refused(build: Build) -> None:
    """Before anything is made of it: so many choices would take all memory there is."""
    stage = build()
    submit, session = stage.pipeline.submit, stage.session
    with pytest.raises(ValueError, match="n must be between 1 and 128"):
        submit(session, request(4, limits=Limits(n=2**32 - 1)))
    await submit(session, request(4, limits=Limits(n=2)))
    with pytest.raises(ValueError, match="slot 5 of session 1 is still in use"):
        submit(session, request(5))
    assert set(stage.pipeline.sessions[session].choices) == {4, 5}


class Panic(BaseException):
    """As libraries in Rust raise it."""


async def test_a_panic_of_the_tokenizer_ends_one_request(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = build()

    def panic(*arguments: object) -> bytes:
        raise Panic

    with monkeypatch.context() as patch:
        patch.setattr(stage.model.tokenizer, "encode", panic)
        await stage.submit(0)
    assert stage.gateway.finishes[0].error.kind == "Internal"
    await stage.submit(1)
    assert len(stage.link.adds) == 1


async def test_template_errors_reach_the_client(build: Build, tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "strict")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    stage = build(folder)
    messages = json.dumps([{"role": "user", "content": "x"}]).encode()
    await stage.submit(chat=ChatInput(messages_json=messages))
    assert "never" in stage.gateway.finishes[0].error.message


async def test_without_a_tokenizer_ids_pass_and_text_is_refused(
    build: Build, tmp_path: Path
) -> None:
    stage = build(write_tiny_folder(tmp_path / "bare", with_tokenizer=False))
    await stage.submit(0)
    assert "no tokenizer" in stage.gateway.finishes[0].error.message
    await stage.submit(1, prompt_token_ids=column([1, 2]))
    stage.step((0, 0, [65, 66]), finishes=[finish(0, FinishReason.LENGTH, 2)])
    assert stage.gateway.token_ids[1] == [65, 66] and stage.gateway.texts[1] == b""


async def test_an_abort_while_encoding_never_reaches_the_engine(build: Build) -> None:
    stage = build()
    gate = threading.Event()
    blocked = [stage.model._executor.submit(gate.wait) for _ in range(ENCODE_THREADS)]
    task = stage.pipeline.submit(stage.session, request(0))
    await asyncio.sleep(0)
    stage.pipeline.abort(stage.session, 0)
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED
    gate.set()
    await task
    await asyncio.gather(*map(asyncio.wrap_future, blocked))
    assert not stage.link.adds and len(stage.gateway.finishes) == 1


async def test_an_abort_right_after_the_request_is_not_lost(build: Build) -> None:
    stage = build()
    task = stage.pipeline.submit(stage.session, request(0))
    stage.pipeline.abort(stage.session, 0)
    await asyncio.gather(task, return_exceptions=True)
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED and not stage.link.adds


async def test_one_aborted_choice_leaves_the_other(build: Build) -> None:
    stage = build()
    task = stage.pipeline.submit(stage.session, request(0, limits=Limits(n=2)))
    stage.pipeline.abort(stage.session, 0)
    await task
    (sent,) = stage.link.adds
    assert (sent.limits.n, sent.limits.first_choice) == (1, 1)
    stage.step((0, 0, "b"))
    assert stage.gateway.texts == {1: b"b"}


async def test_a_running_request_ends_with_the_engines_abort(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.pipeline.abort(stage.session, 0)
    stage.pipeline.abort(stage.session, 0)
    assert stage.link.aborts == [0] and not stage.gateway.finishes
    stage.end(0, FinishReason.ABORTED)
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED
    stage.pipeline.abort(stage.session, 0)  # no-op
    stage.pipeline.abort(99, 0)


async def test_cancel_matches_id_and_tenant_exactly(build: Build) -> None:
    stage = build()
    for slot, (name, tenant) in enumerate([("job1", "a"), ("job10", "a"), ("job1", "b")]):
        await stage.submit(slot, request_id=name, limits=Limits(tenant=tenant))
    assert stage.pipeline.cancel("job", "a") == 0
    assert stage.pipeline.cancel("job1", "a") == 1 and stage.link.aborts == [0]
    stage.end(0, FinishReason.ABORTED)
    assert stage.pipeline.cancel("job1", "a") == 0


async def test_a_closed_session_ends_all_and_hears_nothing(build: Build) -> None:
    stage = build()
    await stage.submit(0)
    await stage.submit(1, limits=Limits(n=2))
    stage.pipeline.close_session(stage.session)
    seen = len(stage.gateway.batches)
    assert stage.link.aborts == [0, 1, 2]
    stage.step((0, 0, "x"))
    for slot in range(3):
        stage.end(slot, FinishReason.ABORTED)
    assert len(stage.gateway.batches) == seen and not stage.pipeline.seats.all()[0].live
    with pytest.raises(KeyError):
        stage.pipeline.submit(stage.session, request(0))


async def test_what_comes_for_the_ended_shifts_nobody_elses_tokens(build: Build) -> None:
    stage = build()
    for slot in range(3):
        await stage.submit(slot, text=TextOptions(stop=["z"]))
    stage.step((0, 0, "z"))
    assert stage.gateway.finishes[0].stop_string == "z"
    stage.step((0, 1, "abc"), (9, 0, "de"), (1, 0, "f"), (2, 0, "gh"))
    assert (stage.gateway.texts[1], stage.gateway.texts[2]) == (b"f", b"gh")


async def test_a_slot_in_use_is_refused(build: Build) -> None:
    stage = build()
    await stage.submit(0, limits=Limits(n=2))
    with pytest.raises(ValueError, match="in use"):
        stage.pipeline.submit(stage.session, request(1))


async def test_too_many_pending_requests_are_told_to_come_back(build: Build) -> None:
    stage = build(max_pending=1, with_engine=False)
    waiting = stage.pipeline.submit(stage.session, request(0))
    await stage.submit(1)
    error = stage.gateway.finishes[1].error
    assert error.kind == "Overloaded" and error.retry_after_ms == 1000
    stage.pipeline.attach_engine(stage.link)
    await waiting
    assert len(stage.link.adds) == 1
    await stage.submit(2)
    assert len(stage.link.adds) == 2, "nobody is pending any more"


async def test_without_an_engine_a_request_waits_then_is_refused(build: Build) -> None:
    stage = build(with_engine=False, engine_wait_s=0.02)
    await stage.submit()
    end = stage.gateway.finishes[0]
    assert (end.reason, end.error.kind) == (FinishReason.IGNORED, "Unavailable")
    assert "no engine connected" in end.error.message
    assert not stage.pipeline.seats._waiters


async def test_a_deadline_counts_while_waiting(build: Build) -> None:
    stage = build(with_engine=False)
    await stage.submit(limits=Limits(deadline_ms=20))
    assert stage.gateway.finishes[0].reason == FinishReason.DEADLINE


async def test_the_least_loaded_ready_engine_is_chosen(build: Build) -> None:
    stage = build()
    idle = FakeLink("idle")
    loading = FakeLink("loading", EngineState(engine="loading", reasons=["loading"]))
    for link in (idle, loading):
        stage.pipeline.attach_engine(link)
    for slot in range(4):
        await stage.submit(slot)
    assert [len(link.adds) for link in (stage.link, idle, loading)] == [2, 2, 0]
    stage.link.state = ready_state(num_running=50)
    await stage.submit(4)
    assert len(idle.adds) == 3
    stage.link.state = ready_state(num_running=50, num_replicas=25)
    await stage.submit(5)
    assert len(stage.link.adds) == 3, "2 a replica, and idle has 3"


async def test_an_engine_that_is_silent_gets_work_only_when_all_are(build: Build) -> None:
    stage = build()
    other = FakeLink("other", ready_state("other", num_running=50))
    stage.pipeline.attach_engine(other)
    seats = stage.pipeline.seats.all()
    seats[0].heard_s -= 2.0
    await stage.submit(0)
    assert (len(stage.link.adds), len(other.adds)) == (0, 1)
    assert not stage.pipeline.seats.reasons()
    seats[1].heard_s -= 3.0
    await stage.submit(1)
    assert (len(stage.link.adds), len(other.adds)) == (1, 1)
    assert stage.pipeline.seats.reasons() == [
        "fake: not heard of for 2.0 s",
        "other: not heard of for 3.0 s",
    ]
    stage.pipeline.on_state(other)
    assert not stage.pipeline.seats.reasons()


async def test_what_has_ended_waits_for_no_collection_of_garbage(build: Build) -> None:
    """Of a busy service's requests some lay about for thousands of others, with their prompts."""
    stage = build()
    gc.collect()
    before = sum(isinstance(one, Ticket) for one in gc.get_objects())
    gc.disable()
    try:
        await stage.submit(0, limits=Limits(n=2))
        stage.step((0, 0, "a"), (1, 0, "b"), finishes=[finish(0, FinishReason.LENGTH, 1)])
        stage.end(1, FinishReason.LENGTH, 1)
        await stage.submit(2, text=TextOptions(stop=["b"]))
        stage.step((2, 0, "ab"))
        stage.end(2, FinishReason.STOPPED, 2)
        await stage.submit(3)
        stage.pipeline.abort(stage.session, 3)
        stage.end(3, FinishReason.ABORTED, 0)
        await stage.submit(4, limits=Limits(max_tokens=1 << 30))
        assert sorted(stage.gateway.finishes) == [0, 1, 2, 3, 4]
        await asyncio.sleep(0)
        assert sum(isinstance(one, Ticket) for one in gc.get_objects()) == before
    finally:
        gc.enable()
