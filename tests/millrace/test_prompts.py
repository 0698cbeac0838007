"""What offline users may ask becomes the message that the gateway would send."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidRequest
from millrace.async_llm import conversations, listed
from millrace.params import SamplingParams
from millrace.prompts import Asked, asked, embed_request
from protos.common_pb2 import EMBED, MEAN, Grammar, ModelInfo

INFO = ModelInfo(id="m", tool_format="hermes", reasoning_format="think_tags")
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"name": "s", "schema": {"type": "object"}}


def chat(info: ModelInfo = INFO, params: dict[str, Any] | None = None, **options: Any) -> Asked:
    given = SamplingParams(**params or {})
    return asked({"messages": MESSAGES, **options}, given, info, "r", 7)


def test_a_chat_carries_its_options() -> None:
    found = chat(
        chat_template_kwargs={"a": 1}, reasoning_effort="none", continue_final_message=False
    )
    request = found.request
    assert (request.model, request.request_id, request.sampling.seed) == ("m", "r", 7)
    assert json.loads(request.chat.messages_json) == [{"role": "user", "content": "a"}]
    kwargs = json.loads(request.chat.template_kwargs_json)
    assert kwargs == {"enable_thinking": False, "a": 1}
    assert request.text.split_reasoning and found.show_reasoning and found.tools is None


def test_thoughts_are_parted_where_there_are_any() -> None:
    assert not chat(ModelInfo(id="m")).request.text.split_reasoning
    assert not chat(include_reasoning=False).show_reasoning
    assert not asked("text", SamplingParams(), INFO, "r", 1).request.text.split_reasoning


def test_tools_that_must_be_called_become_a_grammar() -> None:
    forced = chat(tools=[TOOL], tool_choice="required")
    assert forced.tools is not None and forced.request.text.grammar.kind == Grammar.LARK
    free = chat(tools=[TOOL])
    assert free.tools is not None and not free.request.text.grammar.kind
    assert json.loads(free.request.chat.tools_json)[0]["function"]["name"] == "f"
    none = chat(tools=[TOOL], tool_choice="none")
    assert none.tools is None and not none.request.chat.tools_json


def test_forms_of_the_answer_are_the_parameters() -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}
    assert chat(params=form).request.text.grammar.kind == Grammar.JSON_SCHEMA
    structured = {"structured_outputs": {"json": {"type": "object"}}}
    for one in (form, structured):
        both = chat(params=one, tools=[TOOL])  # a call, or JSON of the schema
        assert both.request.text.grammar.kind == Grammar.LARK


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "unknown chat options"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'g'"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "excludes"),
        ({"chat_template_kwargs": {"messages": 1}}, "reserved"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
    ],
)
def test_bad_chats_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        chat(**options)


def test_unknown_fields_of_messages_that_are_null_ask_for_nothing() -> None:
    said = {"role": "user", "content": "Hi", "other": None}
    found = asked({"messages": [said]}, SamplingParams(), INFO, "r", 1).request
    assert b"other" not in found.chat.messages_json


def test_a_budget_of_thoughts_excludes_a_context_that_moves() -> None:
    prompt = {"messages": MESSAGES, "thinking_token_budget": 5}
    with pytest.raises(InvalidRequest, match="thinking_token_budget excludes n_keep"):
        asked(prompt, SamplingParams(n_keep=4), INFO, "r", 1)


def test_vectors_and_answers_share_the_prefix_cache() -> None:
    answer = asked("Hi", SamplingParams(), INFO, "r", 1).request
    assert answer.limits.cache_salt == embed_request("Hi", INFO, "r", None).limits.cache_salt


def test_ids_may_be_an_array() -> None:
    prompt = {"prompt_token_ids": np.array([1, 258])}
    found = asked(prompt, SamplingParams(), INFO, "r", 1).request
    assert found.prompt_token_ids == b"\1\0\0\0\2\1\0\0"


def test_vectors() -> None:
    request = embed_request({"prompt_token_ids": [1, 2]}, INFO, "r", "mean")
    assert (request.limits.kind, request.limits.pooling) == (EMBED, MEAN)
    assert len(request.prompt_token_ids) == 8
    assert embed_request("x", INFO, "r", "last").limits.HasField("pooling")
    assert not embed_request("x", INFO, "r", None).limits.HasField("pooling")
    for pooling in ("max", ["mean"]):
        with pytest.raises(InvalidRequest, match="last or mean"):
            embed_request("x", INFO, "r", pooling)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="a prompt must be"):
        embed_request({"messages": MESSAGES}, INFO, "r", "last")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt_token_ids": None}, "prompt_token_ids must be a list of token ids, got None"),
        ({"prompt_token_ids": [1, "2"]}, "prompt_token_ids has '2', no id"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids has True, no id"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids has -1, no id"),
        ({"prompt_token_ids": [2**32]}, "prompt_token_ids has 4294967296, no id"),
        ({"prompt_token_ids": 5}, "prompt_token_ids must be a list of token ids, got 5"),
        ({"prompt": "a", 1: 2, "z": 3}, "a prompt of prompt may not also have"),
        ("\ud800", "prompt is not Unicode text"),
        ({"prompt": "\udcff"}, "prompt is not Unicode text"),
        (
            {"messages": [{"role": "user", "content": "\ud800"}]},
            "messages must be what JSON can say",
        ),
        (
            {"messages": [{"role": "user", "content": object()}]},
            "messages must be what JSON can say",
        ),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        asked(prompt, SamplingParams(), INFO, "r", 7)


@pytest.mark.parametrize("messages", [5, {"role": "user", "content": "a"}, [None], [5]])
def test_what_is_no_talk_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="messages must be a list of messages"):
        conversations(messages, {})


def test_a_talk_without_messages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        conversations([], {})


def test_what_are_no_prompts_are_refused() -> None:
    for given in (None, 5):
        with pytest.raises(InvalidRequest, match="prompts must be one, or a list"):
            listed(given)  # type: ignore[arg-type]
