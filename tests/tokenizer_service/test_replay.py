"""Engines and gateways that are lost: every choice goes on without a gap or a duplicate."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from protos import limits
from protos.common_pb2 import ErrorDetail, FinishReason, Grammar, Limits, Timings
from protos.limits import PROOF_TOKENS
from protos.tokenizer_pb2 import Resumed, TextOptions
from tests.support.fake_engine import FakeLink, column, finish, ids_of, ready_state
from tests.tokenizer_service.stage import Build, Stage, request, until
from tokenizer_service import placement


async def test_a_lost_engine_is_replayed_without_gap_or_duplicate(build: Build) -> None:
    stage = build()
    await stage.submit(0, limits=Limits(n=2), text=TextOptions(stop=["zz"]))
    stage.step((0, 0, "ab"), (1, 0, [120, 0xE4]))
    stage.link.state = ready_state(num_waiting=1, num_running=2, kv_usage=0.5)
    stage.pipeline.detach_engine(stage.link)
    told = stage.states[-1]
    assert told.reasons == ["connection lost"]
    assert (told.num_waiting, told.num_running, told.num_replicas, told.kv_usage) == (0, 0, 0, 0)
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
    (counted,) = stage.pipeline._metrics.output_tokens.collect()
    assert counted.samples[0].value == 3 + 4, "each once, whoever computed it twice"


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


async def test_who_only_waited_in_a_lost_replica_is_replayed_too(build: Build) -> None:
    stage = build()
    await stage.submit()
    left = ErrorDetail(kind="Unavailable", code="replica_left")
    stage.end(0, FinishReason.ERROR, 0, error=left)
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 2)
    assert not stage.gateway.finishes


async def test_a_replay_is_logged_and_its_engine_has_not_seen_all_decoding(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    stage = build()
    await stage.submit()
    stage.step((0, 0, "a"))
    lost = ErrorDetail(kind="Unavailable", code="replica_lost")
    stage.end(0, FinishReason.ERROR, 1, error=lost)
    told = [record for record in caplog.records if record.message == "replay"]
    expected = {"request_id": "r0", "choice": 0, "attempt": 1}
    assert [{name: vars(one)[name] for name in expected} for one in told] == [expected]
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 2)
    timings = Timings(queue_s=0.5, prefill_s=0.25, decode_s=0.125)
    stage.step((1, 1, "b"), finishes=[finish(1, FinishReason.LENGTH, 2, timings=timings)])
    assert stage.gateway.finishes[0].timings == Timings(queue_s=0.5, prefill_s=0.25)


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
    assert end.error.code == "attempts_exhausted" and not stage.link.adds


async def test_engines_that_die_together_cost_one_attempt(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = build()
    others = [FakeLink("second"), FakeLink("third"), FakeLink("fourth")]
    for link in others:
        stage.pipeline.attach_engine(link)
        stage.pipeline.on_state(link)
    await stage.submit()
    stage.step((0, 0, "a"))
    monkeypatch.setattr(limits, "AFTERMATH_S", 0.1)
    stage.pipeline.detach_engine(stage.link)
    for link in others:
        stage.pipeline.on_state(link)  # said before, and read only now
    await asyncio.sleep(0.02)
    for link in others[:2]:
        stage.pipeline.detach_engine(link)
    await asyncio.sleep(0.1)
    assert not any(link.adds for link in others), "the last one has not spoken since"
    stage.link = others[2]
    stage.step((7, 0, "of another"))
    await until(lambda: bool(stage.link.adds))
    assert [add.attempt for add in stage.link.adds] == [1]
    stage.step((0, 1, "b"), finishes=[finish(0, FinishReason.LENGTH, 2)])
    assert stage.gateway.texts[0] == b"ab"


async def test_other_weights_do_not_go_on_with_what_was_begun(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of one vocabulary may have other weights, as while a model is exchanged."""

    def attach(name: str, model_hash: str) -> FakeLink:
        link = FakeLink(name)
        link.state = ready_state(name, model_hash=model_hash)
        stage.pipeline.attach_engine(link)
        stage.pipeline.on_state(link)
        return link

    stage = build(with_engine=False)
    stage.link = attach("old", "a" * 16)
    other = attach("new", "b" * 16)
    assert other.state is not None
    assert list(other.state.reasons) == [
        "new serves another model (bbbbbbbbbbbb) than the engines before it (aaaaaaaaaaaa)"
    ]
    await stage.submit(limits=Limits(n=2))
    stage.step((0, 0, "a"))
    stage.pipeline.detach_engine(stage.link)
    monkeypatch.setattr(placement, "KEPT_S", 0.0)
    other.state = ready_state("new", model_hash="b" * 16)
    stage.pipeline.on_state(other)
    await stage.submit(5)
    assert [add.request_id for add in other.adds] == ["r5"], "nobody of the first has come back"
    silent = attach("tells no hash", "")
    assert silent.state is not None and silent.state.ready
    stage.pipeline.detach_engine(silent)
    monkeypatch.setattr(placement, "KEPT_S", 10.0)
    stage.link = attach("old again", "a" * 16)
    assert stage.link.state is not None and not stage.link.state.ready, "for what is new"
    await until(lambda: len(stage.link.adds) == 2)  # the choice that has no word yet as well
    held = [ids_of(ids) for add in stage.link.adds for ids in add.resumed_token_ids]
    assert held == [[97]]


async def test_a_replay_of_a_gateway_waits_for_the_weights_that_began_it(build: Build) -> None:
    stage = build(with_engine=False)
    stage.link = FakeLink("new")
    stage.link.state = ready_state("new", model_hash="b" * 16)
    stage.pipeline.attach_engine(stage.link)
    stage.pipeline.on_state(stage.link)
    held = [Resumed(token_ids=column([97]), text_bytes=1)]
    again = request(attempt=1, resumed=held, model_hash="a" * 16)
    opening = stage.pipeline.submit(stage.session, again)
    await stage.submit(1)
    assert [add.request_id for add in stage.link.adds] == ["r1"]
    old = FakeLink("old")
    old.state = ready_state("old", model_hash="a" * 16)
    stage.pipeline.attach_engine(old)
    stage.pipeline.on_state(old)
    await opening
    assert [add.request_id for add in old.adds] == ["r0"]
    told = {one.slot: one.model_hash for batch in stage.gateway.batches for one in batch.started}
    assert told == {0: "a" * 16, 1: "b" * 16}


async def test_a_gateway_is_told_of_other_weights_that_begin_instead(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "KEPT_S", 0.0)
    stage = build(with_engine=False)
    for name in "ab":  # the second one begins, nothing was said yet
        stage.link = FakeLink(name)
        stage.link.state = ready_state(name, model_hash=name)
        stage.pipeline.attach_engine(stage.link)
        stage.pipeline.on_state(stage.link)
        if name == "a":
            await stage.submit()
            stage.pipeline.detach_engine(stage.link)
    await until(lambda: bool(stage.link.adds))
    told = [one.model_hash for batch in stage.gateway.batches for one in batch.started]
    assert told == ["a", "b"]


async def test_a_tokenizer_that_slept_keeps_to_the_weights_it_served(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(placement.time, "monotonic", lambda: now)
    model = placement.OneModel("tiny", 512)

    def is_taken(model_hash: str, ready: bool = True) -> bool:
        state = ready_state(model_hash=model_hash, ready=ready)
        model.check(state)
        return state.ready

    assert is_taken("a") and not is_taken("b")
    now += 60
    assert not is_taken("b") and is_taken("a"), "both spoke meanwhile"
    for _ in range(30):
        now += 0.5
        assert not is_taken("b") and not is_taken("a", ready=False), "it is there"
    for _ in range(19):
        now += 0.5
        assert not is_taken("b")
    now += 1
    assert is_taken("b") and not is_taken("a")


async def test_who_only_waits_outlives_any_number_of_engines(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROOF_S", 0.02)
    stage = build()
    await stage.submit()
    for number in range(5):
        await asyncio.sleep(0.03)
        stage.pipeline.on_state(stage.link)
        stage.pipeline.detach_engine(stage.link)
        stage.link = FakeLink(f"engine-{number}")
        stage.pipeline.attach_engine(stage.link)
        await until(lambda: bool(stage.link.adds))
        assert stage.link.adds[0].attempt == 1


def test_what_is_lost_again_and_again_while_it_seems_to_wait_is_counted_at_last() -> None:
    num_waits, attempt, losses = 0, 0, 0
    while attempt < limits.MAX_ATTEMPTS:
        num_waits = limits.waits(num_waits, 0, sent_s=1.0, heard_s=3.0)
        attempt = max(1, attempt) if num_waits else limits.attempts(attempt, 0)
        losses += 1
    assert 2 * limits.MAX_WAITS < losses < 4 * limits.MAX_WAITS
    assert limits.waits(3, 1, 1.0, 3.0) == limits.waits(3, 0, 1.0, 1.5) == 0


async def test_who_waits_in_engines_has_the_whole_time_at_each_loss(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more by being refused while engines come back."""
    monkeypatch.setattr(limits, "PROOF_S", 0.02)
    stage = build(replay_timeout_s=60.0)
    await stage.submit()
    loop = asyncio.get_running_loop()
    clock, skipped_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + skipped_s)
    for number in range(4):
        await asyncio.sleep(0.03)
        stage.pipeline.on_state(stage.link)
        skipped_s += 40.0  # it has waited there so long
        stage.pipeline.detach_engine(stage.link)
        await asyncio.sleep(0)
        stage.link = FakeLink(f"engine-{number}")
        stage.pipeline.attach_engine(stage.link)
        await until(lambda: bool(stage.link.adds or stage.gateway.finishes))
        assert not stage.gateway.finishes
    monkeypatch.setattr(limits, "PROOF_S", 1e9)  # however slow this machine is
    monkeypatch.setattr(limits, "AFTERMATH_S", 5.0)
    skipped_s += 61.0
    stage.end(0, FinishReason.IGNORED, error=ErrorDetail(kind="Unavailable"))

    def has_ended() -> bool:
        stage.pipeline.on_state(stage.link)
        return bool(stage.gateway.finishes or len(stage.link.adds) > 1)

    await until(has_ended)
    assert len(stage.link.adds) == 1


async def test_an_engine_is_told_how_long_a_request_has_waited_and_not_how_long_it_ran(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, clock, skipped_s = build(), time.monotonic, 0
    monkeypatch.setattr(time, "monotonic", lambda: clock() + skipped_s)
    await stage.submit(limits=Limits(waited_ms=7_000_000))
    told = [stage.link.adds[0].limits.waited_ms]
    for tokens in ("", "a", ""):
        skipped_s += 1000
        if tokens:
            stage.step((0, 0, tokens))
            skipped_s += 10_000
        stage.pipeline.on_state(stage.link)
        stage.pipeline.detach_engine(stage.link)
        stage.link = FakeLink("next")
        stage.pipeline.attach_engine(stage.link)
        await until(lambda: bool(stage.link.adds))
        told.append(stage.link.adds[0].limits.waited_ms)
    assert [ms // 1_000_000 for ms in told] == [7, 8, 9, 10]


@pytest.mark.parametrize("wait_s", [40.0, 60.0, 70.0])
async def test_a_deadline_counts_while_a_replay_waits(
    build: Build, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    stage = build()
    loop = asyncio.get_running_loop()
    clock, skipped_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + skipped_s)
    await stage.submit(limits=Limits(deadline_ms=60_000))
    stage.pipeline.detach_engine(stage.link)
    await asyncio.sleep(0)  # it waits for another
    skipped_s += wait_s
    stage.link = FakeLink("second")
    stage.pipeline.attach_engine(stage.link)
    await until(lambda: bool(stage.link.adds or stage.gateway.finishes))
    if wait_s < 60.0:
        assert stage.link.adds[0].limits.deadline_ms <= 20_000
    else:  # 0 would be none
        assert stage.gateway.finishes[0].reason == FinishReason.DEADLINE and not stage.link.adds


async def test_what_has_gone_on_after_a_loss_is_ended_like_any_other(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.pipeline.detach_engine(stage.link)
    stage.link = FakeLink("second")
    stage.pipeline.attach_engine(stage.link)
    await until(lambda: bool(stage.link.adds))
    stage.step((0, 0, "a"))
    stage.end(0, FinishReason.ERROR, error=ErrorDetail(kind="Unavailable"))
    assert stage.gateway.finishes[0].error.kind == "Unavailable"


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


def num_replaying(stage: Stage) -> float:
    (gauge,) = stage.pipeline._metrics.replaying_streams.collect()
    return gauge.samples[0].value


async def test_choices_that_wait_for_an_engine_are_counted(build: Build) -> None:
    stage = build()
    await stage.submit(limits=Limits(n=2))
    stage.pipeline.detach_engine(stage.link)
    await asyncio.sleep(0)
    assert num_replaying(stage) == 2
    second = FakeLink("second")
    stage.pipeline.attach_engine(second)
    await until(lambda: len(second.adds) == 2)
    assert num_replaying(stage) == 0


async def test_a_request_waiting_for_replay_can_be_aborted(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.pipeline.detach_engine(stage.link)
    await asyncio.sleep(0)
    stage.pipeline.abort(stage.session, 0)
    await until(lambda: num_replaying(stage) == 0)
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


async def test_a_gateways_replay_waits_for_an_engine_as_long_as_any_other(build: Build) -> None:
    """A tokenizer and the engine may die together; the client has text already."""
    stage = build(with_engine=False, engine_wait_s=0, max_pending=1)
    resumed = Resumed(token_ids=column(list(b"ab")), text_bytes=2)
    waiting = [
        stage.pipeline.submit(stage.session, request(slot, attempt=1, resumed=[resumed]))
        for slot in range(2)  # more than may be pending: they were let in before
    ]
    await stage.submit(5)  # a new one, which is refused
    assert list(stage.gateway.finishes) == [5]
    stage.pipeline.attach_engine(stage.link)
    await asyncio.gather(*waiting)
    assert [ids_of(add.resumed_token_ids[0]) for add in stage.link.adds] == 2 * [list(b"ab")]


async def test_who_waited_or_got_further_is_not_blamed_for_a_loss(build: Build) -> None:
    stage = build()
    await stage.submit(0, limits=Limits(max_tokens=90))
    attempts = []
    for number in range(5):
        slot = stage.link.adds[-1].slot
        held = len(stage.gateway.texts.get(0, b""))
        if number in (0, 4):  # so many new tokens that this choice is not to blame
            for more in range(PROOF_TOKENS):
                stage.step((slot, held + more, "a"))
        code = "replica_left" if number in (2, 3) else "replica_lost"
        lost = ErrorDetail(kind="Unavailable", code=code)
        stage.end(slot, FinishReason.ERROR, 0, error=lost)
        stage.pipeline.on_state(stage.link)
        await until(lambda count=number + 2: len(stage.link.adds) == count)  # type: ignore[misc]
        attempts.append(stage.link.adds[-1].attempt)
    assert attempts == [1, 2, 2, 2, 1], "one that waited is sent as it was"


async def test_a_replay_that_ends_with_eos_before_min_tokens_goes_on(build: Build) -> None:
    stage = build()
    resumed = Resumed(token_ids=column([97, stage.eos]), text_bytes=1)
    limits = Limits(max_tokens=9, min_tokens=4)
    await stage.submit(0, limits=limits, attempt=1, resumed=[resumed])
    assert not stage.gateway.finishes and len(stage.link.adds) == 1
    grammar = Grammar(kind=Grammar.REGEX, text="a")  # whose end comes before them
    rest: dict[str, Any] = {"attempt": 1, "resumed": [resumed]}
    await stage.submit(1, limits=limits, text=TextOptions(grammar=grammar), **rest)
    assert stage.gateway.finishes[1].reason == FinishReason.STOPPED and len(stage.link.adds) == 1
