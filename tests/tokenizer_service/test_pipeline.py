"""Lives of requests between a recording gateway and a scripted engine: one end each, no gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.common_pb2 import FinishReason, Limits, SamplingParams
from protos.engine_pb2 import TokenLogprobs
from protos.tokenizer_pb2 import TextOptions
from tests.support.fake_engine import FakeLink, column, finish, ids_of, ready_state
from tests.support.tiny_tokenizer import write_tiny_folder
from tests.tokenizer_service.stage import Build, Gateway, request, until


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
    stage.step((0, 0, "Hi"))
    stage.step((0, 2, [0xE4]))
    stage.step((0, 3, [0xBD, 0xA0, stage.eos]))
    stage.end(0, FinishReason.STOPPED, 6, stop_token_id=stage.eos)
    end = stage.gateway.finishes[7]
    assert stage.gateway.texts[7].decode() == "Hi你"
    assert stage.gateway.token_ids[7][-1] == stage.eos
    assert (end.reason, end.num_output_tokens) == (FinishReason.STOPPED, 6)
    assert end.num_prompt_tokens == num_prompt and not end.HasField("stop_token_id")
    assert not stage.pipeline.sessions[stage.session].choices
    assert not stage.pipeline.seats.all()[0].live and not stage.pipeline._tickets


async def test_the_prompts_ids_come_once_a_request_and_only_when_asked_for(build: Build) -> None:
    stage = build()
    await stage.submit(2, limits=Limits(n=3), text=TextOptions(return_prompt_ids=True))
    await stage.submit(9)
    sent = stage.link.adds[0].prompt_token_ids
    told = [started for batch in stage.gateway.batches for started in batch.started]
    assert [(one.slot, one.prompt_token_ids) for one in told] == [
        (2, sent), (3, b""), (4, b""), (9, b"")
    ]  # fmt: skip


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
    (counted,) = stage.pipeline._metrics.output_tokens.collect()
    assert counted.samples[0].value == 4, "what made no text is not counted as such"


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
    session = stage.pipeline.open_session(other, other.take)
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
    stage.step((0, 4, "e"))  # until the engine has heard of it, it speaks on
    stage.end(0, FinishReason.ABORTED, 5)
    stage.pipeline.on_state(stage.link)
    await until(lambda: len(stage.link.adds) == 2)
    again = stage.link.adds[1]
    assert (again.slot, again.attempt) == (1, 1)
    assert again.resumed_token_ids == [column(list(b"ab"))]
    stage.step((1, 2, "cd"))
    assert stage.gateway.texts[0] == b"abcd" and not stage.gateway.finishes


@pytest.mark.parametrize("keeps", [False, True])
async def test_logprobs_tell_which_tokens_the_text_lacks(build: Build, keeps: bool) -> None:
    stage = build()
    text = TextOptions(keep_special_tokens=keeps, ignore_eos=True)
    await stage.submit(limits=Limits(logprobs=0), text=text)
    for index, token in enumerate((0xE4, stage.eos)):
        row = TokenLogprobs(slot=0, index=index, token_ids=[token], logprobs=[-0.5])
        stage.step((0, index, [token]), logprobs=[row])
    rows = [row for batch in stage.gateway.batches for row in batch.logprobs]
    assert [row.is_hidden for row in rows] == [False, not keeps]


async def test_without_a_tokenizer_logprobs_have_ids_alone(build: Build, tmp_path: Path) -> None:
    stage = build(write_tiny_folder(tmp_path / "bare", with_tokenizer=False))
    asked = request(0, limits=Limits(logprobs=0), prompt_token_ids=column([1]))
    await stage.pipeline.submit(stage.session, asked)
    row = TokenLogprobs(slot=0, index=0, token_ids=[5], logprobs=[-0.5])
    stage.step((0, 0, [5]), logprobs=[row])
    (shown,) = stage.gateway.batches[-1].logprobs
    assert (shown.entries[0].token_id, shown.entries[0].token, shown.is_hidden) == (5, "", False)


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


async def test_models_tell_the_smallest_length_of_the_engines(build: Build) -> None:
    stage = build(with_engine=False)
    assert [(m.id, m.max_model_len) for m in stage.pipeline.models()] == [("tiny", 0)]
    for length in (128, 64):
        stage.pipeline.attach_engine(FakeLink(state=ready_state(max_model_len=length)))
    assert stage.pipeline.models()[0].max_model_len == 64


async def test_an_engine_of_another_model_is_not_ready_for_ours(build: Build) -> None:
    """A worker of any model is taken when none of ours came back: its tokens mean other text."""
    stage = build(with_engine=False)
    other = FakeLink(state=None)
    stage.pipeline.attach_engine(other)
    other.state = ready_state(vocab_size=260)
    stage.pipeline.on_state(other)
    (reason,) = stage.pipeline.seats.reasons()
    assert "another model" in reason and "260" in reason and "512" in reason
    assert not stage.states[-1].ready
    other.state = ready_state()
    stage.pipeline.on_state(other)
    assert not stage.pipeline.seats.reasons() and stage.states[-1].ready
