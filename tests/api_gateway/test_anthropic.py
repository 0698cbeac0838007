"""POST /v1/messages: what goes down the line, what comes back, whole and streamed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import pytest

from api_gateway.anthropic.conversation import messages_of
from api_gateway.anthropic.schema import MessagesRequest
from protos.common_pb2 import ERROR, IGNORED, LENGTH, Grammar, ModelInfo
from tests.api_gateway.conftest import in_process, running, serving, until
from tests.api_gateway.test_responses import saying, sent
from tests.api_gateway.test_tools import ARGUMENTS, CITY, N, W
from tests.support.fake_tokenizer import MODEL, FakeTokenizer, Stream

URL = "/v1/messages"
COUNT = f"{URL}/count_tokens"
TEXT = "Hello there, wörld"
TOOL = {"name": "get_weather", "description": "of a city", "input_schema": CITY}
TOOLS = [TOOL, {"name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "x"}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
USER = {"role": "user", "content": "hi"}


def ask(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 50, "messages": [USER], **more}


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the events of a stream tell, as Anthropic's clients read them."""
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    assert message["usage"]["input_tokens"] == 5
    blocks = [event["type"] for event in events if event["type"].startswith("content_block")]
    starts = [place for place, kind in enumerate(blocks) if kind.endswith("start")]
    stops = [place for place, kind in enumerate(blocks) if kind.endswith("stop")]
    assert [start - 1 for start in starts[1:]] + [len(blocks) - 1] == stops
    for event in events[1:]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                block["input"] = (block["input"] or "") + delta["partial_json"]
            else:
                field = delta["type"].removesuffix("_delta")
                block[field] += delta[field]
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    for block in message["content"]:
        if block["type"] == "tool_use" and isinstance(block["input"], str):
            block["input"] = json.loads(block["input"])
    assert events[-1]["type"] == "message_stop"
    return message


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """Return the whole reply; the stream tells the same."""
    body = {**body, "request_id": "same"}
    whole: dict[str, Any] = (await client.post(URL, json=body)).json()
    told = put_together(sent((await client.post(URL, json={**body, "stream": True})).text))
    assert told == {name: value for name, value in whole.items() if name != "timings"}
    return whole


def seen(fake: FakeTokenizer) -> Any:
    """Return the last request that went down the line."""
    return list(fake.streams[-1].requests_seen.values())[-1]


async def test_a_message(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    whole = await both(client, ask(system="Be short.", temperature=0.5, top_k=7, top_p=0.9))
    assert (whole["id"], whole["type"], whole["role"]) == ("msg_same", "message", "assistant")
    assert whole["content"] == [{"type": "text", "text": TEXT}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)
    usage = whole["usage"]
    read, cached = usage["input_tokens"], usage["cache_read_input_tokens"]
    assert (read + cached, usage["output_tokens"]) == (5, 3)
    request = seen(fake)
    assert json.loads(request.chat.messages_json) == [
        {"role": "system", "content": "Be short."}, USER,
    ]  # fmt: skip
    assert (request.limits.max_tokens, request.text.cut_max_tokens) == (50, True)
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 7)


async def test_what_was_cached_is_told_apart_from_what_was_read(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(("Hi", 0), num_cached_tokens=3)
    usage = (await client.post(URL, json=ask())).json()["usage"]
    assert usage == {
        "input_tokens": 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
        "output_tokens": 1,
    }  # fmt: skip
    events = sent((await client.post(URL, json=ask(stream=True))).text)
    assert events[-2]["usage"] == usage


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        ({"reason": LENGTH, "num_output_tokens": 50}, "max_tokens", None),
        ({"reason": LENGTH, "num_output_tokens": 3}, "model_context_window_exceeded", None),
        ({"stop_string": "END"}, "stop_sequence", "END"),
        ({"stop_token_id": 7}, "end_turn", None),
    ],
)
async def test_how_it_ended(
    client: httpx.AsyncClient, fake: FakeTokenizer, finish: dict[str, Any], reason: str,
    sequence: str | None,
) -> None:  # fmt: skip
    fake.script = saying(("some", 0), **finish)
    whole = await both(client, ask(stop_sequences=["END"]))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert list(seen(fake).text.stop) == ["END"]


@pytest.mark.parametrize("cut", [1, 3, 1000])
async def test_calls(client: httpx.AsyncClient, fake: FakeTokenizer, cut: int) -> None:
    text = f"Let me see.\n{W}\n{N}\n"
    fake.script = saying(*((text[at : at + cut], 0) for at in range(0, len(text), cut)))
    whole = await both(client, ask(tools=TOOLS))
    said, weather, now = whole["content"]
    assert (said["text"], whole["stop_reason"]) == ("Let me see.", "tool_use")
    assert (weather["name"], weather["input"]) == ("get_weather", json.loads(ARGUMENTS))
    assert (now["name"], now["input"]) == ("now", {})
    assert weather["id"] != now["id"]
    offered = json.loads(seen(fake).chat.tools_json)
    assert offered[0]["function"] == {
        "name": "get_weather", "description": "of a city", "parameters": CITY,
    }  # fmt: skip


async def test_a_name_may_be_as_long_as_anthropic_has_it(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """Claude Code's `mcp__server__tool`: one that was refused would end every request of its."""
    name = "mcp__server__" + "n" * 115
    fake.script = saying((N.replace("now", name), 0))
    (call,) = (await both(client, ask(tools=[{**TOOL, "name": name}])))["content"]
    assert (call["name"], len(name)) == (name, 128)


async def test_a_call_that_was_cut_cannot_be_run(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    cut = W[: -len("}}\n</tool_call>")]
    fake.script = saying((cut, 0), reason=LENGTH, num_output_tokens=50)
    body = ask(tools=TOOLS, tool_choice={"type": "any"})
    whole = (await client.post(URL, json=body)).json()
    (call,) = whole["content"]
    assert (call["name"], call["input"], whole["stop_reason"]) == ("get_weather", {}, "max_tokens")


@pytest.mark.parametrize(
    ("choice", "forced", "single"),
    [
        ({"type": "auto"}, False, False),
        ({"type": "any"}, True, False),
        ({"type": "any", "disable_parallel_tool_use": True}, True, True),
        ({"type": "tool", "name": "now"}, True, True),
    ],
)
async def test_which_tools_must_be_called(
    client: httpx.AsyncClient, fake: FakeTokenizer, choice: dict[str, Any], forced: bool,
    single: bool,
) -> None:  # fmt: skip
    fake.script = saying((N, 0), (W, 0))
    whole = (await client.post(URL, json=ask(tools=TOOLS, tool_choice=choice))).json()
    assert (seen(fake).text.grammar.kind == Grammar.LARK) is forced
    assert len(whole["content"]) == (1 if single else 2)


async def test_tools_that_may_not_be_called_are_not_shown(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    assert (await both(client, ask(tools=TOOLS, tool_choice={"type": "none"})))["content"]
    assert seen(fake).chat.tools_json == b""


@pytest.mark.parametrize(
    ("thinking", "config", "expected"),
    [
        (None, None, {"enable_thinking": False}),
        (None, {"effort": "low"}, {"enable_thinking": False}),
        ({"type": "disabled"}, {"effort": "low"}, {"enable_thinking": False}),
        ({"type": "disabled"}, None, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 1024}, None,
         {"enable_thinking": True, "reasoning_effort": "high"}),
        ({"type": "adaptive"}, {"effort": "max"},
         {"enable_thinking": True, "reasoning_effort": "max"}),
        ({"type": "adaptive", "display": "omitted"}, {"effort": "low"},
         {"enable_thinking": True, "reasoning_effort": "low"}),
    ],
)  # fmt: skip
async def test_thoughts_come_when_they_are_asked_for(
    fake: FakeTokenizer, thinking: Any, config: Any, expected: dict[str, Any]
) -> None:
    fake.script = saying(("hm", 1), (" so", 1), ("Yes.", 0))
    async with running(fake.address) as gateway, in_process(gateway) as client:
        whole = await both(client, ask(thinking=thinking, output_config=config))
    *thoughts, answer = whole["content"]
    shown = [{"type": "thinking", "thinking": "hm so", "signature": ""}]
    is_shown = expected["enable_thinking"] and thinking.get("display") != "omitted"
    assert (thoughts, answer["text"]) == (shown if is_shown else [], "Yes.")
    assert json.loads(seen(fake).chat.template_kwargs_json or b"{}") == expected
    budget = (thinking or {}).get("budget_tokens")
    assert seen(fake).text.HasField("thinking_token_budget") == (budget is not None)
    assert seen(fake).text.thinking_token_budget == (budget or 0)


async def test_values_for_the_template_stand_before_what_thinking_says(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(("hm", 1), ("Yes.", 0))
    given = {"enable_thinking": True, "a": 1}
    body = ask(thinking={"type": "disabled"}, chat_template_kwargs=given)
    thoughts, answer = (await both(client, body))["content"]
    assert (thoughts["type"], answer["type"]) == ("thinking", "text")
    assert json.loads(seen(fake).chat.template_kwargs_json) == given


async def test_a_thought_is_signed_before_it_ends(fake: FakeTokenizer) -> None:
    fake.script = saying(("hm", 1), ("Yes.", 0))
    body = ask(stream=True, thinking={"type": "adaptive"})
    async with running(fake.address) as gateway, in_process(gateway) as client:
        told = sent((await client.post(URL, json=body)).text)
    kinds = [one.get("delta", {}).get("type", one["type"]) for one in told if "index" in one]
    assert kinds == [
        "content_block_start", "thinking_delta", "signature_delta", "content_block_stop",
        "content_block_start", "text_delta", "content_block_stop",
    ]  # fmt: skip


async def test_to_allow_thoughts_is_no_error_where_there_are_none(fake: FakeTokenizer) -> None:
    """Claude Code asks every model for adaptive thoughts."""
    fake.info = ModelInfo(id=MODEL, max_model_len=4096)
    body = ask(thinking={"type": "adaptive"}, output_config={"effort": "high"})
    async with running(fake.address) as gateway, in_process(gateway) as client:
        assert (await both(client, body))["content"]
    assert seen(fake).chat.template_kwargs_json == b""


async def test_a_conversation_comes_back_as_it_was_said(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"},
                                     {"type": "text", "text": "b", **mark}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "look it up", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "thinking", "thinking": "", "signature": "x"},
            {"type": "text", "text": "I ", "citations": None},
            {"type": "text", "text": "ask."},
            {"type": "tool_use", "id": "c1", "name": "now", "input": {}, "caller": None},
            {"type": "tool_use", "id": "c2", "name": "now", "input": {"at": "ö"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "noon", **mark},
            {"type": "tool_result", "tool_use_id": "c2", "is_error": True,
             "content": [{"type": "text", "text": "none"}]},
            {"type": "tool_result", "tool_use_id": "c3"},
            {"type": "text", "text": "And?"}]},
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "Well?"},
    ]  # fmt: skip
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
        {"type": "text", "text": "You help.", **mark},
        {"type": "text", "text": "Briefly."},
    ]
    body = ask(messages=messages, system=system, cache_control={"type": "ephemeral"})
    assert (await client.post(URL, json=body)).status_code == 200

    def call(call_id: str, arguments: str) -> dict[str, Any]:
        function = {"name": "now", "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    assert json.loads(seen(fake).chat.messages_json) == [
        {"role": "system", "content": "You help.\nBriefly."},
        {"role": "user", "content": "a\nb\nc"},
        {
            "role": "assistant",
            "content": "I ask.",
            "tool_calls": [call("c1", "{}"), call("c2", '{"at":"ö"}')],
            "reasoning_content": "look it up",
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "tool", "content": "Error: none", "tool_call_id": "c2"},
        {"role": "tool", "content": "", "tool_call_id": "c3"},
        {"role": "user", "content": "And?"},
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize("header", ["", "x-anthropic-billing-header: cch=1;\n"])
async def test_a_billing_header_is_not_shown_to_the_model(
    client: httpx.AsyncClient, fake: FakeTokenizer, header: str
) -> None:
    """In a system prompt that comes as a turn, neither; one of nothing else is no turn."""
    help_, nothing = header + "You help.", {"role": "system", "content": header}
    turn = {"role": "system", "content": [{"type": "text", "text": help_}]}
    for body in (ask(system=help_), ask(messages=[turn, USER, nothing])):
        assert (await client.post(URL, json=body)).status_code == 200
        told = json.loads(seen(fake).chat.messages_json)
        assert [(one["role"], one["content"]) for one in told] == [
            ("system", "You help."), ("user", USER["content"]),
        ]  # fmt: skip


async def test_an_answer_that_is_begun_goes_on(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    begun = {"role": "assistant", "content": "The best answer is ("}
    assert (await client.post(URL, json=ask(messages=[USER, begun]))).status_code == 200
    assert seen(fake).chat.continue_final_message
    assert json.loads(seen(fake).chat.messages_json) == [USER, begun]
    silent = {"role": "assistant", "content": []}
    call = {"type": "tool_use", "id": "c", "name": "now", "input": {}}
    calling = {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]}
    for messages in ([USER], [USER, silent], [USER, silent, USER], [USER, calling]):
        assert (await client.post(URL, json=ask(messages=messages))).status_code == 200
        assert not seen(fake).chat.continue_final_message
        told = json.loads(seen(fake).chat.messages_json)
        assert [one["role"] for one in told] == [one["role"] for one in messages]
    auto = ask(tool_choice={"type": "auto"})
    assert (await client.post(URL, json=auto)).status_code == 200


async def test_the_form_of_an_answer(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert (await client.post(URL, json=ask(output_config=config))).status_code == 200
    assert seen(fake).text.grammar.kind == Grammar.JSON_SCHEMA
    older = {"output_format": config["format"]}
    assert (await client.post(URL, json=ask(**older))).status_code == 200
    assert seen(fake).text.grammar.kind == Grammar.JSON_SCHEMA


@pytest.mark.parametrize("field", ["output_format", "output_config.format"])
async def test_a_form_that_cannot_be_kept_to_is_blamed_on_its_field(
    client: httpx.AsyncClient, fake: FakeTokenizer, field: str
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        said = {"message": "response_format: no", "param": "response_format"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", code="invalid_grammar", **said)

    fake.script = refuse
    given: Any = {"type": "json_schema", "schema": SCHEMA}
    first, _, second = field.partition(".")
    body = ask(**{first: {second: given} if second else given})
    error = (await client.post(URL, json=body)).json()["error"]
    assert (error["param"], error["message"]) == (field, f"{field}: no")


async def test_what_clients_send_that_asks_for_nothing(client: httpx.AsyncClient) -> None:
    clear = {"type": "clear_thinking_20251015", "keep": "all"}
    body = ask(
        metadata={"user_id": "u" * 5000}, service_tier="auto", mcp_servers=[], container=None,
        context_management={"edits": [clear]}, speed="standard",
    )  # fmt: skip
    assert (await client.post(URL, json=body)).status_code == 200


def block(**fields: Any) -> dict[str, Any]:
    return ask(messages=[{"role": "user", "content": [fields]}])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": MODEL, "messages": [USER]}, "max_tokens"),
        (ask(max_tokens=0), "max_tokens"),
        (ask(max_tokens=-1), "max_tokens"),
        (ask(messages=[], system="Be short."), "messages"),
        (ask(messages=[{"role": "system", "content": ""}]), "messages"),
        (ask(messages=[{"role": "user"}]), "messages[0].content"),
        (ask(messages=[{"role": "user", "content": []}]), "messages[0].content"),
        (ask(messages=[{"role": "tool", "content": ""}]), "messages[0].role"),
        (block(type="image", source={}), "messages[0].content[0].type"),
        (block(type="tool_use", id="i", name="n", input={}), "messages[0].content[0].type"),
        (block(type="text"), "messages[0].content[0].text"),
        (block(type="tool_result", tool_use_id="c", content=[{"type": "image"}]),
         "messages[0].content[0].content[0].type"),
        (ask(system=[{"type": "image"}]), "system[0].type"),
        (ask(system=[{"type": "text", "text": "a"}] * 257), "system"),
        (ask(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 257}]),
         "messages[0].content"),
        (ask(messages=[{"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "n", "input": {}}] * 129}]),
         "messages[0].content[128]"),
        (ask(messages=[{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c"}] * 256}] * 17), "messages"),
        (ask(temperature=9), "temperature"),
        (ask(stop_sequences=[""]), "stop_sequences[0]"),
        (ask(stop_sequences=["x"] * 99), "stop_sequences"),
        (ask(tools=[{"type": "web_search_20250305", "name": "w"}]), "tools[0].type"),
        (ask(tools=[{**TOOL, "type": "bash_20250124"}]), "tools[0].type"),
        (ask(tools=[{**TOOL, "name": "n" * 129}]), "tools[0].name"),
        (ask(tools=[{**TOOL, "defer_loading": True}, {**TOOL, "name": "a b"}]), "tools[1].name"),
        (ask(tools=[{**TOOL, "name": "a b"}]), "tools[0].name"),
        (ask(tools=[{**TOOL, "input_schema": {"type": "array"}}]), "tools[0].input_schema.type"),
        (ask(tools=[TOOL, TOOL]), "tools[1].name"),
        (ask(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}), "tool_choice.name"),
        (ask(tools=[TOOL], tool_choice={"type": "tool"}), "tool_choice.name"),
        (ask(tools=[TOOL], tool_choice={"type": "any", "name": "x"}), "tool_choice.name"),
        (ask(tool_choice={"type": "any"}), "tool_choice"),
        (ask(thinking={"type": "deep"}), "thinking.type"),
        (ask(thinking={"type": "enabled", "budget_tokens": -2}), "thinking.budget_tokens"),
        (ask(output_config={"effort": "huge"}), "output_config.effort"),
        (ask(output_config={"format": {"type": "json_schema"}}), "output_config.format.schema"),
        (ask(output_format={"type": "json_schema", "schema": {"enum": [2**70]}}),
         "output_format.schema"),
        (ask(output_format={"type": "json_schema", "schema": {}},
             output_config={"format": {"type": "json_schema", "schema": {}}}), "output_format"),
        (ask(output_config={"format": {"type": "json_schema", "schema": {"enum": [2**70]}}}),
         "output_config.format.schema"),
        (ask(service_tier="batch"), "service_tier"),
        (ask(mcp_servers=[{}]), "mcp_servers"),
        (ask(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}),
         "context_management"),
        (ask(n=2), "n"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_named(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    reply = await client.post(URL, json=body)
    told = reply.json()
    assert (reply.status_code, told["error"]["param"]) == (400, param), told
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["request_id"] == reply.headers["x-request-id"]
    assert "response_format" not in told["error"]["message"]


async def test_tokens_are_counted(client: httpx.AsyncClient) -> None:
    counts = []
    for more in ({"tools": TOOLS}, {"system": "Be short."}):
        reply = await client.post(COUNT, json={"model": MODEL, "messages": [USER], **more})
        assert (reply.status_code, list(reply.json())) == (200, ["input_tokens"])
        counts.append(reply.json()["input_tokens"])
    assert 0 < counts[0] < counts[1]
    refused = await client.post(COUNT, json={"model": MODEL, "messages": []})
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        ("Overloaded", 429, "rate_limit_error"),
        ("Unavailable", 503, "overloaded_error"),
        ("Internal", 500, "api_error"),
        ("PayloadTooLarge", 413, "request_too_large"),
        ("DeadlineExceeded", 408, "timeout_error"),
    ],
)
async def test_errors_from_below(
    client: httpx.AsyncClient, fake: FakeTokenizer, kind: str, status: int, word: str
) -> None:
    def run(stream: Stream, slot: int) -> None:
        stream.fail(slot, ERROR, kind=kind, message="no")

    fake.script = run
    for more in ({}, {"stream": True}):
        reply = await client.post(URL, json=ask(**more))
        assert (reply.status_code, reply.json()["error"]["type"]) == (status, word)


async def test_a_stream_that_fails_says_so(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "Hel")
        stream.fail(slot, ERROR, kind="Internal", message="broken", code="worker_failed")

    fake.script = run
    last = sent((await client.post(URL, json=ask(stream=True))).text)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert (last["error"]["message"], last["error"]["code"]) == ("broken", "worker_failed")


async def test_tools_whose_loading_is_deferred(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """The template does not show them; one that a result refers to is told there, and callable."""
    fake.script = saying((W, 0))
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    later = [{**tool, "defer_loading": True} for tool in TOOLS]
    found = [{"type": "tool_reference", "tool_name": name} for name in ("get_weather", "gone")]
    messages = [
        USER,
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c1", "name": "ToolSearch", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": found}]},
    ]  # fmt: skip
    whole = await both(client, ask(messages=messages, tools=[search, *later]))
    assert [block["name"] for block in whole["content"]] == ["get_weather"]
    shown = json.loads(seen(fake).chat.tools_json)
    assert [tool["function"]["name"] for tool in shown] == ["ToolSearch"]
    told, gone = json.loads(seen(fake).chat.messages_json)[-1]["content"].split("\n")
    assert json.loads(told.removeprefix("This tool can be called now: "))["function"] == {
        "name": "get_weather", "description": "of a city", "parameters": CITY,
    }  # fmt: skip
    assert gone == "There is no tool gone."
    unknown = await both(client, ask(tools=[search, *later]))
    assert [block["type"] for block in unknown["content"]] == ["text"]  # nobody has referred to it


async def test_a_tool_is_told_once_however_often_it_is_referred_to(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """A prompt must not grow by a definition with each of the short blocks that refer to one."""
    tool = {**TOOL, "description": "of a city " * 10_000, "defer_loading": True}
    found = [{"type": "tool_reference", "tool_name": "get_weather"}] * 200
    results = [{"type": "tool_result", "tool_use_id": "c", "content": found}] * 5
    body = ask(messages=[{"role": "user", "content": results}], tools=[tool])
    assert (await client.post(URL, json=body)).status_code == 200
    told = [m["content"] for m in json.loads(seen(fake).chat.messages_json)]
    first, *again = "\n".join(told).split("\n")
    assert first.startswith("This tool can be called now: ") and tool["description"] in first
    assert again == ["This tool can be called: get_weather"] * 999


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([{"type": "image", "source": {}}], "messages.0.content.0.image"),
        ([{"type": "text", "text": "a"}, {"type": "document", "source": {}}],
         "messages.0.content.1.document"),
        ([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}],
         "messages.0.content.0.tool_result.content.0.image"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_named_as_claude_code_looks_for_it(
    client: httpx.AsyncClient, content: Any, path: str
) -> None:
    """It then takes the block out of its conversation and asks again."""
    reply = await client.post(URL, json=ask(messages=[{"role": "user", "content": content}]))
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(f"{path}: messages[0].content")


async def test_a_model_that_is_not_served(client: httpx.AsyncClient) -> None:
    reply = await client.post(URL, json=ask(model="claude-opus-4"))
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")


async def test_anthropics_own_client(fake: FakeTokenizer) -> None:
    text = f"Let me see.\n{W}\n"
    fake.script = saying(*((text[at : at + 5], 0) for at in range(0, len(text), 5)))
    asked: Any = {"model": MODEL, "max_tokens": 50, "messages": [USER], "tools": [TOOL]}
    async with (
        serving(fake.address) as (_, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="key", max_retries=0) as client,
    ):
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(model=MODEL, messages=asked["messages"])
        listed = [model async for model in client.models.list()]
        found = await client.models.retrieve("alias")
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(**{**asked, "stop_sequences": [""]})
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**{**asked, "model": "other"})
    assert [model.id for model in listed] == [MODEL, "alias"]
    assert (found.display_name, found.max_input_tokens) == ("alias", 4096)
    assert [block.type for block in whole.content] == ["text", "tool_use"]
    assert [block.model_dump() for block in streamed.content] == [
        {**block.model_dump(), "id": streamed.content[1].id} if block.type == "tool_use"
        else block.model_dump() for block in whole.content
    ]  # fmt: skip
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)
    assert counted.input_tokens > 0
    assert whole._request_id == whole.id.removeprefix("msg_")
    assert "stop_sequences[0]" in str(refused.value)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_runner_goes_on_without_a_thread(fake: FakeTokenizer, stream: bool) -> None:
    """It asks first that the server keep the conversation, and must not be told less than that."""

    async def get_weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    def run(stream: Stream, slot: int) -> None:
        told = "rain in Z" in str(stream.requests_seen[slot])
        saying(("It rains." if told else W, 0))(stream, slot)

    fake.script = run
    async with (
        serving(fake.address) as (_, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="key", max_retries=0) as client,
    ):
        tools = [anthropic.beta_async_tool(get_weather)]
        asked: Any = {"model": MODEL, "max_tokens": 50, "messages": [USER], "tools": tools}
        runner = client.beta.messages.tool_runner(stream=stream, max_iterations=3, **asked)
        last = await runner.until_done()
    assert last.content[0].type == "text" and last.content[0].text == "It rains."


async def test_a_live_message_is_known_by_its_id(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = lambda stream, slot: stream.start(slot)
    asked = asyncio.create_task(client.post(URL, json=ask(request_id="live")))
    await until(lambda: bool(fake.streams and fake.streams[-1].requests_seen))
    assert (await client.post("/v1/requests/msg_live/cancel")).json()["cancelled"] == 1
    assert (await asked).json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"id": 123456789012345678901234567890}', {"id": 123456789012345678901234567890}),
        ('{"a": 1e999, "b": "c"}', {"a": float("inf"), "b": "c"}),
        ('{"a": ' + "[" * 250 + "]" * 250 + "}", {}),
        ('{"a": ' + "[" * 1500 + "]" * 1500 + "}", {}),
        ('{"a": ' + "[" * 1500, {}),
    ],
)
async def test_any_arguments_end_well(
    client: httpx.AsyncClient, fake: FakeTokenizer, written: str, read: Any
) -> None:
    text = f'<tool_call>\n{{"name": "get_weather", "arguments": {written}'
    fake.script = saying((text, 0), reason=LENGTH, num_output_tokens=50)
    body = ask(tools=TOOLS, tool_choice={"type": "any"})
    (call,) = json.loads((await client.post(URL, json=body)).text)["content"]
    assert (call["name"], call["input"]) == ("get_weather", read)
    events = sent((await client.post(URL, json={**body, "stream": True})).text)
    assert [event["type"] for event in events[-3:]] == [
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


def test_many_blocks_are_one_message() -> None:
    block = {"type": "text", "text": "x"}
    turns = [{"role": "assistant", "content": [block] * 256}] * 1000
    (message,) = messages_of(msgspec.convert(ask(messages=turns), MessagesRequest))
    assert message.content == "x" * 256_000


async def test_a_stream_without_news_is_kept_alive(fake: FakeTokenizer) -> None:
    def run(stream: Stream, slot: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1.5, stream.start, slot)
        loop.call_later(1.6, stream.token, slot, "Hi")
        loop.call_later(3.2, stream.finish, slot)

    fake.script = run
    async with (
        running(fake.address, keep_alive_s=1) as gateway,
        in_process(gateway) as client,
    ):
        text = (await client.post(URL, json=ask(stream=True))).text
    begun = text.index("event: message_start")
    assert ": keep-alive\n\n" in text[:begun] and "event: ping\n" in text[begun:]
    assert ": keep-alive" not in text[begun:]
    assert put_together([e for e in sent(text) if e["type"] != "ping"])["content"]


async def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """Claude Code shortens its conversation by how the message begins."""

    def run(stream: Stream, slot: int) -> None:
        why = "this model's maximum context length is 64 tokens, prompt and answer together, but "
        detail = {"kind": "InvalidRequest", "message": f"{why}the prompt has 70"}
        stream.fail(slot, ERROR, param="messages", code="context_length_exceeded", **detail)

    fake.script = run
    error = (await client.post(URL, json=ask())).json()["error"]
    assert error["message"].startswith("prompt is too long: 70 tokens > 64 maximum")
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_keys_come_in_either_header(fake: FakeTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(b'sk-a').hexdigest()}  team-a\n")
    async with (
        running(fake.address, api_key_file=str(path)) as gateway,
        in_process(gateway) as client,
    ):
        for headers in ({"x-api-key": "sk-a"}, {"authorization": "Bearer sk-a"}):
            reply = await client.post(URL, json=ask(), headers=headers)
            assert reply.status_code == 200
        assert seen(fake).limits.tenant == "team-a"
        refused = await client.post(URL, json=ask(), headers={"x-api-key": "sk-b"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            401, "authentication_error",
        )  # fmt: skip


@pytest.mark.parametrize(("method", "path"), [("GET", URL), ("POST", f"{URL}/batches")])
async def test_errors_of_no_route_are_anthropics_too(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    told = (await client.request(method, path)).json()
    assert (told["type"], bool(told["error"]["message"])) == ("error", True)


async def test_names_of_the_client_stay_its_own(client: httpx.AsyncClient) -> None:
    choice = {"type": "tool", "name": "please stop now"}
    error = (await client.post(URL, json=ask(tools=TOOLS, tool_choice=choice))).json()["error"]
    assert "'please stop now'" in error["message"]
