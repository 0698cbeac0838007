"""Lives of requests between a recording gateway and a scripted engine: one end each, no gap."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from protos.common_pb2 import EngineState, ErrorDetail, Finish, FinishReason, Limits, SamplingParams
from protos.engine_pb2 import TokenLogprobs
from protos.tokenizer_pb2 import ChatInput, Resumed, TextBatch, TextOptions, TextRequest
from tests.support.fake_engine import FakeLink, column, finish, ids_of, ready_state, token_batch
from tests.support.tiny_tokenizer import write_tiny_folder
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.text_model import TextModel, load_text_model


@dataclass
class Gateway:
    """Collects what a gateway would see, and checks the order of every slot's columns."""

    batches: list[TextBatch] = field(default_factory=list)
    texts: dict[int, bytes] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, Finish] = field(default_factory=dict)

    def __call__(self, batch: TextBatch) -> None:
        self.batches.append(batch)
        counts, tokens = ids_of(batch.counts), iter(ids_of(batch.token_ids))
        for slot, text, at, count, index in zip(
            ids_of(batch.slots), batch.texts, ids_of(batch.text_offsets), counts,
            ids_of(batch.token_offsets), strict=True,
        ):  # fmt: skip
            assert slot not in self.finishes
            assert at == len(self.texts.setdefault(slot, b""))
            assert index == len(self.token_ids.setdefault(slot, []))
            self.texts[slot] += text.encode()
            self.token_ids[slot] += [next(tokens) for _ in range(count)]
        for end in batch.finishes:
            assert end.slot not in self.finishes, "two ends"
            self.finishes[end.slot] = end

    @property
    def started(self) -> list[int]:
        return [started.slot for batch in self.batches for started in batch.started]


@dataclass
class Stage:
    pipeline: TextPipeline
    model: TextModel
    gateway: Gateway
    session: int
    link: FakeLink
    states: list[EngineState]

    async def submit(self, slot: int = 0, **fields: Any) -> None:
        await self.pipeline.submit(self.session, request(slot, **fields))

    def step(self, *entries: tuple[int, int, str | list[int]], **rest: Any) -> None:
        rows = [(s, at, list(t.encode()) if isinstance(t, str) else t) for s, at, t in entries]
        self.pipeline.on_tokens(self.link, token_batch(rows, **rest))

    def end(self, slot: int, reason: FinishReason, count: int = 0, **rest: Any) -> None:
        self.step(finishes=[finish(slot, reason, count, **rest)])

    @property
    def eos(self) -> int:
        (eos,) = self.model.completion.eos_token_ids
        return eos


def request(slot: int = 0, **fields: Any) -> TextRequest:
    given: dict[str, Any] = {"model": "tiny", "request_id": f"r{slot}", "slot": slot}
    if not {"chat", "prompt_token_ids"} & fields.keys():
        given["prompt"] = "Hello world"
    return TextRequest(**(given | fields))


Build = Callable[..., Stage]


@pytest.fixture
async def build(tiny_folder: Path) -> AsyncIterator[Build]:
    models: list[TextModel] = []

    def make(folder: Path = tiny_folder, with_engine: bool = True, **options: Any) -> Stage:
        metrics = TokenizerMetrics(CollectorRegistry())
        model = load_text_model(folder, "tiny", metrics, encode_threads=1)
        models.append(model)
        states: list[EngineState] = []
        pipeline = TextPipeline(model, metrics, on_engine_state=states.append, **options)
        gateway, link = Gateway(), FakeLink()
        if with_engine:
            pipeline.attach_engine(link)
        return Stage(pipeline, model, gateway, pipeline.open_session(gateway), link, states)

    yield make
    for model in models:
        await model.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds; the test's own timeout is the bound."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_a_request_from_text_to_text(build: Build) -> None:
    stage = build()
    await stage.submit(7, limits=Limits(tenant="t"), sampling=SamplingParams(seed=3))
    (sent,) = stage.link.adds
    assert (sent.slot, sent.request_id, sent.attempt) == (0, "r7", 0)
    assert ids_of(sent.limits.stop_token_ids) == [stage.eos]
    num_prompt = len(ids_of(sent.prompt_token_ids))
    assert sent.limits.max_tokens == 256 - num_prompt and sent.limits.n == 1
    assert SamplingParams.FromString(sent.sampling).seed == 3
    assert stage.gateway.started == [7]
    stage.step((0, 0, "Hi"), step_id=5, timestamp_ns=9)
    stage.step((0, 2, [0xE4]))
    stage.step((0, 3, [0xBD, 0xA0, stage.eos]))
    stage.end(0, FinishReason.STOPPED, 6, stop_token_id=stage.eos)
    end = stage.gateway.finishes[7]
    assert stage.gateway.texts[7].decode() == "Hi你"
    assert stage.gateway.token_ids[7][-1] == stage.eos
    assert (end.reason, end.num_output_tokens) == (FinishReason.STOPPED, 6)
    assert end.num_prompt_tokens == num_prompt and not end.HasField("stop_token_id")
    assert stage.gateway.batches[1].step_id == 5
    assert not stage.pipeline.sessions[stage.session].choices
    assert not stage.pipeline.seats.all()[0].live and not stage.pipeline._tickets


async def test_a_stop_string_ends_at_once_and_closes_when_the_engine_does(build: Build) -> None:
    stage = build()
    await stage.submit(text=TextOptions(stop=["END"]))
    stage.step((0, 0, "aE"))
    assert stage.gateway.texts[0] == b"a"
    stage.step((0, 2, "NDxyz"))
    end = stage.gateway.finishes[0]
    assert (end.reason, end.stop_string, end.num_output_tokens) == (FinishReason.STOPPED, "END", 4)
    assert stage.link.stops == [(0, 4)] and stage.gateway.texts[0] == b"a"
    stage.step((0, 7, "more"))  # CLOSING: dropped
    stage.end(0, FinishReason.STOPPED, 4)
    assert stage.gateway.token_ids[0] == list(b"aEND")
    assert not stage.pipeline.seats.all()[0].live


async def test_the_stop_string_goes_before_the_engines_end_of_the_same_step(build: Build) -> None:
    stage = build()
    await stage.submit(text=TextOptions(stop=["b"], include_stop=True))
    stage.step((0, 0, "ab"), finishes=[finish(0, FinishReason.LENGTH, 2)])
    assert stage.gateway.finishes[0].stop_string == "b"
    assert stage.gateway.texts[0] == b"ab"


async def test_held_text_comes_with_the_end(build: Build) -> None:
    stage = build()
    await stage.submit(text=TextOptions(stop=["abc"]))
    stage.step((0, 0, "xab"), finishes=[finish(0, FinishReason.LENGTH, 3)])
    assert stage.gateway.texts[0] == b"xab"
    assert len(stage.gateway.batches[-1].texts) == 1


async def test_an_asked_stop_id_is_shown(build: Build) -> None:
    stage = build()
    await stage.submit(text=TextOptions(stop_token_ids=[65]))
    stage.step((0, 0, "xA"), finishes=[finish(0, FinishReason.STOPPED, 2, stop_token_id=65)])
    assert stage.gateway.finishes[0].stop_token_id == 65 and stage.gateway.texts[0] == b"x"


async def test_choices_of_one_request_go_together_and_end_alone(build: Build) -> None:
    stage = build()
    await stage.submit(10, limits=Limits(n=2), text=TextOptions(stop=["!"]))
    (sent,) = stage.link.adds
    assert (sent.slot, sent.limits.n, sent.limits.first_choice) == (0, 2, 0)
    stage.step((0, 0, "a"), (1, 0, "b!"))
    assert stage.gateway.texts == {10: b"a", 11: b"b"} and set(stage.gateway.finishes) == {11}
    stage.step((0, 1, "c"))
    stage.end(0, FinishReason.LENGTH, 2)
    assert stage.gateway.texts[10] == b"ac" and stage.gateway.finishes[11].stop_string == "!"
    await stage.submit(12)
    assert stage.link.adds[-1].slot == 2  # slots are never used again


async def test_steps_of_one_session_are_one_batch(build: Build) -> None:
    stage = build()
    other = Gateway()
    session = stage.pipeline.open_session(other)
    await stage.submit(0)
    await stage.submit(1)
    await stage.pipeline.submit(session, request(0))
    stage.gateway.batches.clear()
    other.batches.clear()
    stage.step((0, 0, "a"), (2, 0, "c"), (1, 0, "b"))
    assert [len(g.batches) for g in (stage.gateway, other)] == [1, 1]
    assert stage.gateway.texts == {0: b"a", 1: b"b"} and other.texts == {0: b"c"}


async def test_tokens_already_held_are_dropped(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.step((0, 0, "ab"))
    stage.step((0, 1, "bc"))
    stage.step((0, 0, "abc"))
    assert stage.gateway.texts[0] == b"abc"


async def test_a_gap_asks_for_replay(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.step((0, 0, "ab"))
    stage.step((0, 3, "d"))
    assert stage.link.aborts == [0]
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 2)
    again = stage.link.adds[1]
    assert (again.slot, again.attempt) == (1, 1)
    assert again.resumed_token_ids == [column(list(b"ab"))]


async def test_logprobs_name_tokens_and_bytes(build: Build) -> None:
    stage = build()
    await stage.submit(limits=Limits(logprobs=2))
    row = TokenLogprobs(slot=0, index=0, token_ids=[0xE4, stage.eos], logprobs=[-0.5, -1.0])
    stage.step((0, 0, [0xE4]), logprobs=[row])
    stage.step((0, 0, [0xE4]), logprobs=[row])  # a repeated token repeats no row
    rows = [row for batch in stage.gateway.batches for row in batch.logprobs]
    assert len(rows) == 1 and (rows[0].slot, rows[0].index) == (0, 0)
    first, second = rows[0].entries
    assert (first.token_id, first.logprob, first.token_bytes) == (0xE4, -0.5, b"\xe4")
    assert (first.token, second.token) == ("\ufffd", "<|im_end|>")


# ── ends before and without an engine ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "other"}, "NotFound", "model"),
        ({"prompt": ""}, "InvalidRequest", "prompt"),
        ({"prompt": "x" * 300}, "PayloadTooLarge", "prompt"),
        ({"limits": Limits(max_tokens=300)}, "InvalidRequest", "max_tokens"),
        ({"prompt_token_ids": column([512])}, "InvalidRequest", "prompt"),
        ({"text": TextOptions(stop_token_ids=[512])}, "InvalidRequest", "stop_token_ids"),
        ({"chat": ChatInput(messages_json=b"[]")}, "InvalidRequest", "messages"),
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
    blocked = stage.model._executor.submit(gate.wait)
    task = stage.pipeline.submit(stage.session, request(0))
    await asyncio.sleep(0)
    stage.pipeline.abort(stage.session, 0)
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED
    gate.set()
    await task
    await asyncio.wrap_future(blocked)
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


async def test_without_an_engine_a_request_waits_then_is_refused(build: Build) -> None:
    stage = build(with_engine=False, engine_wait_s=0.02)
    await stage.submit()
    end = stage.gateway.finishes[0]
    assert (end.reason, end.error.kind) == (FinishReason.IGNORED, "Unavailable")
    assert "no engine connected" in end.error.message


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


# ── replay ───────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_engine_is_replayed_without_gap_or_duplicate(build: Build) -> None:
    stage = build()
    await stage.submit(0, limits=Limits(n=2), text=TextOptions(stop=["zz"]))
    stage.step((0, 0, "ab"), (1, 0, [120, 0xE4]))
    stage.pipeline.detach_engine(stage.link)
    assert stage.states[-1].reasons == ["connection lost"]
    second = FakeLink("second")
    stage.pipeline.attach_engine(second)
    await until(lambda: len(second.adds) == 2)
    sent = [(a.slot, a.limits.n, a.limits.first_choice, a.attempt) for a in second.adds]
    assert sent == [(0, 1, 0, 1), (1, 1, 1, 1)]
    assert second.adds[1].resumed_token_ids == [column([120, 0xE4])]
    stage.step((0, 2, "late"))  # the lost engine speaks on: nobody listens
    stage.link = second
    stage.step((0, 1, "bc"), (1, 2, [0xBD, 0xA0]))  # one token again, half a character goes on
    stage.end(0, FinishReason.LENGTH, 3)
    stage.end(1, FinishReason.LENGTH, 4)
    assert {s: t.decode() for s, t in stage.gateway.texts.items()} == {0: "abc", 1: "x你"}
    assert [stage.gateway.finishes[s].num_output_tokens for s in (0, 1)] == [3, 4]


async def test_a_lost_replica_is_replayed_too(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.step((0, 0, "a"))
    lost = ErrorDetail(kind="Unavailable", code="replica_lost")
    stage.end(0, FinishReason.ERROR, 1, error=lost)
    await asyncio.sleep(0)
    assert not stage.gateway.finishes and len(stage.link.adds) == 1  # waits for news
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 2)
    refused = ErrorDetail(kind="Unavailable", message="no replica")
    stage.end(1, FinishReason.IGNORED, 0, error=refused)  # not up yet: no attempt is spent
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 3)
    assert [add.attempt for add in stage.link.adds] == [0, 1, 1]
    stage.step((2, 1, "b"), finishes=[finish(2, FinishReason.LENGTH, 2)])
    assert stage.gateway.texts[0] == b"ab"


async def test_a_good_end_whose_tokens_are_missing_is_a_gap(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.step((0, 0, "a"))
    stage.end(0, FinishReason.LENGTH, 3)
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 2)
    assert not stage.gateway.finishes


async def test_three_losses_end_a_request(build: Build) -> None:
    stage = build()
    await stage.submit()
    for attempt in range(1, 4):
        stage.pipeline.detach_engine(stage.link)
        stage.link = FakeLink(f"engine-{attempt}")
        stage.pipeline.attach_engine(stage.link)
        await until(lambda: bool(stage.link.adds or stage.gateway.finishes))
    end = stage.gateway.finishes[0]
    assert (end.reason, end.error.kind) == (FinishReason.ERROR, "Unavailable")
    assert not stage.link.adds


async def test_replay_waits_only_so_long(build: Build) -> None:
    stage = build(replay_timeout_s=0.02)
    await stage.submit()
    stage.pipeline.detach_engine(stage.link)
    await until(lambda: bool(stage.gateway.finishes))
    assert stage.gateway.finishes[0].error.kind == "Unavailable"


async def test_an_aborted_request_is_not_replayed(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.pipeline.abort(stage.session, 0)
    stage.pipeline.detach_engine(stage.link)
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED


async def test_an_abort_meets_a_lost_replica_after_the_tokens_of_its_step(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.pipeline.abort(stage.session, 0)
    lost = finish(0, FinishReason.ERROR, error=ErrorDetail(code="replica_lost"))
    stage.step((0, 0, "a"), finishes=[lost])
    assert stage.gateway.texts[0] == b"a"
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED


async def test_one_choice_aborted_while_both_wait_for_replay(build: Build) -> None:
    stage = build()
    await stage.submit(limits=Limits(n=2))
    stage.pipeline.detach_engine(stage.link)
    await asyncio.sleep(0)
    stage.pipeline.abort(stage.session, 0)
    stage.link = FakeLink("second")
    stage.pipeline.attach_engine(stage.link)
    await until(lambda: bool(stage.link.adds))
    await stage.submit(5)
    assert [(add.request_id, add.limits.first_choice) for add in stage.link.adds] == [
        ("r0", 1),
        ("r5", 0),
    ]


async def test_a_request_waiting_for_replay_can_be_aborted(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.pipeline.detach_engine(stage.link)
    await asyncio.sleep(0)
    stage.pipeline.abort(stage.session, 0)
    assert stage.gateway.finishes[0].reason == FinishReason.ABORTED
    second = FakeLink("second")
    stage.pipeline.attach_engine(second)
    await stage.submit(1)
    assert [add.request_id for add in second.adds] == ["r1"]


async def resume(stage: Stage, tokens: bytes | list[int], text_bytes: int, **rest: Any) -> None:
    stage.gateway.texts[0] = b"?" * text_bytes
    stage.gateway.token_ids[0] = list(tokens)
    resumed = Resumed(token_ids=column(list(tokens)), text_bytes=text_bytes)
    fields: dict[str, Any] = {
        "attempt": 1,
        "resumed": [resumed],
        "limits": Limits(n=1, first_choice=1),
    } | rest
    await stage.submit(**fields)


async def test_a_gateways_replay_goes_on_where_the_client_is(build: Build) -> None:
    stage = build()
    await resume(stage, b"abcSTx", 2, text=TextOptions(stop=["STOP"]))
    (sent,) = stage.link.adds
    assert sent.resumed_token_ids == [column(list(b"abcSTx"))]
    assert (sent.attempt, sent.limits.first_choice) == (1, 1)
    assert stage.gateway.texts[0] == b"??cSTx"  # what was delivered is not sent again
    stage.step((0, 6, "y"))
    assert stage.gateway.texts[0] == b"??cSTxy"


@pytest.mark.parametrize(
    ("tokens", "options", "reason", "text"),
    [
        (list(b"aSTOP"), {"text": TextOptions(stop=["STOP"])}, FinishReason.STOPPED, b"?"),
        (list(b"ab"), {"limits": Limits(max_tokens=2)}, FinishReason.LENGTH, b"?b"),
        (list(b"aS"), {"limits": Limits(max_tokens=2), "text": TextOptions(stop=["STOP"])},
         FinishReason.LENGTH, b"?S"),
    ],
)  # fmt: skip
async def test_a_replay_that_had_already_ended_needs_no_engine(
    build: Build, tokens: list[int], options: dict[str, Any], reason: FinishReason, text: bytes
) -> None:
    stage = build()
    await resume(stage, tokens, 1, **options)
    assert stage.gateway.finishes[0].reason == reason
    assert stage.gateway.texts[0] == text and not stage.link.adds


async def test_a_replay_that_ends_with_eos_needs_no_engine(build: Build) -> None:
    stage = build()
    await resume(stage, [97, stage.eos], 1)
    end = stage.gateway.finishes[0]
    assert end.reason == FinishReason.STOPPED and not end.HasField("stop_token_id")
    assert not stage.link.adds


async def test_models_tell_the_smallest_length_of_the_engines(build: Build) -> None:
    stage = build(with_engine=False)
    assert [(m.id, m.max_model_len, m.vocab_size) for m in stage.pipeline.models()] == [
        ("tiny", 0, 512)
    ]
    for length in (128, 64):
        stage.pipeline.attach_engine(FakeLink(state=ready_state(max_model_len=length)))
    assert stage.pipeline.models()[0].max_model_len == 64
