"""Requests of a model that thinks, between a recording gateway and a scripted engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protos.common_pb2 import FinishReason, Grammar, Limits, SamplingParams
from protos.tokenizer_pb2 import ChatInput, Resumed, TextOptions
from tests.support.fake_engine import FakeLink, column, finish, ids_of
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, write_tiny_folder
from tests.tokenizer_service.stage import Build, Stage, until

OPENS = CHAT_TEMPLATE.replace("assistant\\n", "assistant\\n<think>\\n")
KNOWS = CHAT_TEMPLATE.replace(
    "assistant\\n", "assistant\\n{% if no %}<think>\\n\\n</think>\\n\\n{% endif %}"
)


@pytest.fixture(params=[OPENS, KNOWS], ids=["opens", "knows"])
def template(request: pytest.FixtureRequest) -> str:
    source: str = request.param
    return source + "{# </think> #}"


@pytest.fixture
def stage(build: Build, template: str, tmp_path: Path) -> Stage:
    folder = write_tiny_folder(tmp_path / "thinker")
    (folder / "chat_template.jinja").write_text(template)
    return build(folder)


def chat(**fields: Any) -> ChatInput:
    kwargs = json.dumps(fields.pop("kwargs", {})).encode()
    messages = [{"role": "user", "content": "say <think>"}, *fields.pop("more", [])]
    raw = json.dumps(messages).encode()
    return ChatInput(messages_json=raw, template_kwargs_json=kwargs, **fields)


async def think(stage: Stage, slot: int = 0, **fields: Any) -> None:
    options = {"split_reasoning": True, **fields.pop("text", {})}
    fields.setdefault("chat", chat())
    await stage.submit(slot, text=TextOptions(**options), **fields)


def tags(stage: Stage) -> tuple[int, int]:
    assert stage.model.tokenizer is not None
    begin, end = (stage.model.tokenizer.id_of(tag) for tag in ("<think>", "</think>"))
    assert begin is not None and end is not None
    return begin, end


async def test_the_step_that_crosses_the_border_has_two_entries(stage: Stage) -> None:
    begin, end = tags(stage)
    await think(stage)
    ids = [begin, *b"\nwhy", 10, end, *b"\nso"]
    stage.step((0, 0, ids), finishes=[finish(0, FinishReason.LENGTH, len(ids))])
    batch = stage.gateway.batches[-1]
    assert ids_of(batch.channels) == [1, 0] and list(batch.texts) == ["why", "so"]
    assert ids_of(batch.counts) == [7, 3] and ids_of(batch.token_offsets) == [0, 7]
    done = stage.gateway.finishes[0]
    assert (done.num_output_tokens, done.num_reasoning_tokens) == (10, 7)
    assert stage.gateway.thoughts[0] == "why" and stage.gateway.answer(0) == "so"


async def test_without_the_split_the_text_is_raw(stage: Stage) -> None:
    begin, end = tags(stage)
    await stage.submit(chat=chat())
    stage.step((0, 0, [begin, 97, end, 98]), finishes=[finish(0, FinishReason.LENGTH, 4)])
    assert stage.gateway.texts[0] == b"<think>a</think>b"
    assert not stage.gateway.batches[-1].channels
    assert stage.gateway.finishes[0].num_reasoning_tokens == 0


async def test_a_model_that_does_not_think_is_not_split(build: Build) -> None:
    stage = build()
    await think(stage)
    stage.step((0, 0, "<think>a</think>b"))
    assert stage.gateway.texts[0] == b"<think>a</think>b"


async def test_thoughts_that_are_cut_off_have_no_answer(stage: Stage) -> None:
    begin, _ = tags(stage)
    await think(stage)
    stage.step((0, 0, [begin, *b"why </th"]), finishes=[finish(0, FinishReason.LENGTH, 9)])
    assert stage.gateway.thoughts[0] == "why </th" and stage.gateway.answer(0) == ""


@pytest.mark.parametrize(
    ("stop", "thoughts", "answer"),
    [("hy", "w", ""), ("</think>\n\ns", "why", ""), ("o", "why", "s")],
)
async def test_stop_strings_act_on_all_text_tags_included(
    stage: Stage, stop: str, thoughts: str, answer: str
) -> None:
    begin, end = tags(stage)
    await think(stage, text={"stop": [stop]})
    stage.step((0, 0, [begin, *b"why", end, *b"\n\nso"]))
    done = stage.gateway.finishes[0]
    assert done.stop_string == stop and stage.link.stops == [(0, done.num_output_tokens)]
    assert stage.gateway.thoughts[0] == thoughts and stage.gateway.answer(0) == answer


async def test_what_was_held_back_before_a_stop_string_is_shown(stage: Stage) -> None:
    begin, _ = tags(stage)
    await think(stage, text={"stop": ["END"]})
    stage.step((0, 0, [begin, *b"why\n</thEND"]))
    assert stage.gateway.thoughts[0] == "why\n</th" and stage.gateway.answer(0) == ""


async def test_a_lost_engine_changes_nothing(stage: Stage) -> None:
    begin, end = tags(stage)
    await think(stage)
    stage.step((0, 0, [begin, *b"\nwhy"]))
    stage.pipeline.detach_engine(stage.link)
    stage.link = FakeLink("second")
    stage.pipeline.attach_engine(stage.link)
    await until(lambda: bool(stage.link.adds))
    stage.step((0, 4, [121, 10, end, 10, 115]), finishes=[finish(0, FinishReason.LENGTH, 9)])
    assert stage.gateway.thoughts[0] == "why" and stage.gateway.answer(0) == "s"
    assert stage.gateway.finishes[0].num_reasoning_tokens == 7


@pytest.mark.parametrize("held", range(1, 10))
async def test_a_gateways_replay_goes_on_in_its_channel(stage: Stage, held: int) -> None:
    begin, end = tags(stage)
    ids = [begin, *b"why", end, *b"\nso!"]
    await think(stage, 0)
    for at, token in enumerate(ids[:held]):
        stage.step((0, at, [token]))
    seen = stage.gateway.texts.get(0, b"")
    for known in {0, len(seen) // 2, len(seen)}:
        stage.gateway.texts[1], stage.gateway.token_ids[1] = seen[:known], ids[:held]
        stage.gateway.thoughts[1] = b"why"[:known].decode()
        stage.gateway.finishes.pop(1, None)
        resumed = Resumed(token_ids=column(ids[:held]), text_bytes=known)
        await think(stage, 1, resumed=[resumed], attempt=1, limits=Limits(n=1))
        slot = stage.link.adds[-1].slot
        stage.step((slot, held, ids[held:]), finishes=[finish(slot, FinishReason.LENGTH, len(ids))])
        assert stage.gateway.thoughts[1] == "why" and stage.gateway.answer(1) == "so!"
        assert stage.gateway.finishes[1].num_reasoning_tokens == 5


@pytest.mark.parametrize(("behind", "thoughts"), [(b"so", "why"), (None, "why\n")])
async def test_a_replay_that_had_ended_tells_both_texts(
    stage: Stage, behind: bytes | None, thoughts: str
) -> None:
    begin, end = tags(stage)
    ids = [begin, *b"why\n", *([] if behind is None else [end, *behind])]
    stage.gateway.texts[0], stage.gateway.token_ids[0] = b"w", ids
    stage.gateway.thoughts[0] = "w"
    resumed = Resumed(token_ids=column(ids), text_bytes=1)
    await think(stage, resumed=[resumed], attempt=1, limits=Limits(n=1, max_tokens=len(ids)))
    assert stage.gateway.thoughts[0] == thoughts
    assert stage.gateway.answer(0) == (behind or b"").decode()
    num_thoughts = len(ids) - len(behind or b"")
    assert stage.gateway.finishes[0].num_reasoning_tokens == num_thoughts and not stage.link.adds


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({}, True),
        ({"kwargs": {"no": True}, "no_generation_prompt": False}, None),
        ({"more": [{"role": "assistant", "content": "{"}], "continue_final_message": True}, False),
    ],
)
async def test_structured_output_begins_after_the_thoughts(
    stage: Stage, template: str, given: dict[str, Any], waits: bool | None
) -> None:
    grammar = Grammar(kind=Grammar.JSON_SCHEMA, text="{}")
    await think(stage, chat=chat(**given), text={"grammar": grammar})
    (sent,) = stage.link.adds
    told = SamplingParams.FromString(sent.sampling).grammar
    expected = OPENS in template if waits is None else waits
    assert ids_of(told.start_after) == ([tags(stage)[1]] if expected else [])
    assert sent.limits.has_grammar and told.text == "{}"
