"""POST /v1/responses: what goes down the line, what comes back, whole and streamed."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest

from api_gateway.__main__ import Gateway
from api_gateway.answers import CallReader, Said
from api_gateway.output import INCOMPLETE, Output
from api_gateway.parsers.calls import Content, Offer
from api_gateway.responses.objects import Head
from api_gateway.responses.output import Events, Items
from api_gateway.tools import FORMATS, ToolPlan
from protos.common_pb2 import ERROR, IGNORED, LENGTH, Grammar, ModelInfo
from tests.api_gateway.conftest import in_process, running, serving
from tests.api_gateway.test_tools import ARGUMENTS, CITY, N, W
from tests.support.fake_tokenizer import MODEL, FakeTokenizer, Stream, echo

URL = "/v1/responses"
TEXT = "Hello there, wörld"
TOOL = {"type": "function", "name": "get_weather", "description": "of a city", "parameters": CITY}
TOOLS = [TOOL, {"type": "function", "name": "now"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SEARCH = {"type": "web_search"}
CALL = {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}


def ask(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hi", **more}


def saying(*entries: tuple[str, int], **finish: Any) -> Callable[[Stream, int], None]:
    """Return a script of texts and the channel of each."""

    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        for text, channel in entries:
            stream.token(slot, text, channel=channel)
        stream.finish(slot, **finish)

    return run


def sent(body: str) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named as it is typed."""
    found = []
    for name, data in re.findall(r"event: (\S+)\ndata: (.*)\n\n", body):
        found.append(json.loads(data))
        assert found[-1]["type"] == name
    return found


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the stream, whose last one has what the whole reply is."""
    whole = (await client.post(URL, json=body)).json()
    events = sent((await client.post(URL, json={**body, "stream": True})).text)
    told = events[-1]["response"]
    for name in ("created_at", "completed_at", "timings", "id"):
        whole.pop(name), told.pop(name)
    assert re.sub(r"_[0-9a-f-]{20,}", "", json.dumps(told)) == re.sub(
        r"_[0-9a-f-]{20,}", "", json.dumps(whole)
    )
    return events


async def test_a_response_whole(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    body = ask(instructions="Be short.", max_output_tokens=50, temperature=0.5, metadata={"k": "v"})
    whole = (await client.post(URL, json={**body, "request_id": "r1"})).json()
    assert (whole["id"], whole["object"], whole["status"]) == ("resp_r1", "response", "completed")
    (item,) = whole["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [part["text"] for part in item["content"]] == [TEXT]
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (5, 3)
    assert whole["instructions"] == "Be short." and whole["temperature"] == 0.5
    assert whole["metadata"] == {"k": "v"} and whole["store"] is whole["background"] is False
    assert whole["error"] is whole["incomplete_details"] is None
    assert whole["parallel_tool_calls"] is True and whole["reasoning"]["effort"] is None
    (request,) = fake.streams[-1].requests_seen.values()
    assert json.loads(request.chat.messages_json) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
    ]
    assert request.limits.max_tokens == 50 and request.sampling.temperature == 0.5


async def test_a_response_tells_what_its_answer_was_drawn_by(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def told(response: dict[str, Any]) -> list[Any]:
        fields = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
        return [response[name] for name in fields]

    first, *_, last = await both(client, ask(top_p=0.5, frequency_penalty=-1))
    assert told(first["response"]) == told(last["response"]) == [0.7, 0.5, 0, -1]
    greedy = (await client.post(URL, json=ask(temperature=0))).json()
    assert told(greedy) == [0, 0.8, 0, 0] and greedy["metadata"] == {}


async def test_a_response_tells_what_was_asked_for(client: httpx.AsyncClient) -> None:
    asked = {
        "max_output_tokens": 9, "parallel_tool_calls": False, "prompt_cache_key": "k",
        "safety_identifier": "s", "user": "u", "tool_choice": {"type": "function", "name": "now"},
        "reasoning": {"effort": "low", "summary": None}, "instructions": "",
    }  # fmt: skip
    body = ask(**asked, tools=TOOLS, text={"verbosity": "medium"})
    told = (await client.post(URL, json=body)).json()
    assert {name: told[name] for name in asked} == asked
    assert told["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert [tool["name"] for tool in told["tools"]] == ["get_weather", "now"]


async def test_whole_numbers_of_any_size_are_told_as_they_came(client: httpx.AsyncClient) -> None:
    """Of a uint256, say: `default` and `maximum` of a function's argument."""
    amount = {"type": "number", "default": 2**64, "maximum": 2**256 - 1}
    schema = {"type": "object", "properties": {"amount": amount}}
    form = {"type": "json_schema", "name": "n", "schema": schema}
    tools = [{"type": "function", "name": "pay", "parameters": schema}]
    told = (await both(client, ask(tools=tools, text={"format": form})))[-1]["response"]
    assert told["status"] == "completed" and told["text"]["format"]["schema"] == schema
    assert told["tools"][0]["parameters"] == schema


async def test_what_was_used(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = saying(("hm", 1), ("Yes", 0), num_cached_tokens=3, num_reasoning_tokens=1)
    usage = (await both(client, ask()))[-1]["response"]["usage"]
    assert usage == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }


async def test_when_a_response_was_complete(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    whole = (await client.post(URL, json=ask())).json()
    assert whole["completed_at"] >= whole["created_at"]
    events = sent((await client.post(URL, json=ask(stream=True))).text)
    assert events[0]["response"]["completed_at"] is None
    assert events[-1]["response"]["completed_at"] >= events[-1]["response"]["created_at"]
    fake.script = saying(("cut", 0), reason=LENGTH)
    assert (await client.post(URL, json=ask())).json()["completed_at"] is None


async def test_a_response_streamed(client: httpx.AsyncClient) -> None:
    events = await both(client, ask())
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * 3, "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(deltas) == TEXT


async def test_one_that_was_cut(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = saying(("cut", 0), reason=LENGTH)
    last = (await both(client, ask(max_output_tokens=1)))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


async def test_one_that_says_nothing(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = saying()
    (item,) = (await both(client, ask()))[-1]["response"]["output"]
    assert [part["text"] for part in item["content"]] == [""]


@pytest.mark.parametrize("cut", [1, 3, 1000])
async def test_calls(client: httpx.AsyncClient, fake: FakeTokenizer, cut: int) -> None:
    text = f"Let me see.\n{W}\n{N}\n"
    fake.script = saying(*((text[at : at + cut], 0) for at in range(0, len(text), cut)))
    events = await both(client, ask(tools=TOOLS, request_id="same"))
    message, weather, now = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert (weather["name"], weather["arguments"]) == ("get_weather", ARGUMENTS)
    assert (now["name"], now["arguments"]) == ("now", "{}")
    assert weather["call_id"] != now["call_id"]
    done = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [event["arguments"] for event in done] == [ARGUMENTS, "{}"]
    (request,) = list(fake.streams[-1].requests_seen.values())[-1:]
    shown = json.loads(request.chat.tools_json)
    assert [tool["function"]["name"] for tool in shown] == ["get_weather", "now"]


def test_a_call_goes_on_before_what_follows_it() -> None:
    """What is left of its arguments may come together with text behind it."""
    output = Output(Items(Head("r", 0, MODEL, {}), Events(), {}))
    begun = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
    output.take(Said(parts=[begun]), [])
    output.take(
        Said("hm", [{"index": 0, "function": {"arguments": ": 1}"}}, Content("more", 9)]), []
    )
    output.end(INCOMPLETE)
    call, _, message = output.blocks
    assert (call["arguments"], call["status"]) == ('{"a": 1}', "completed")
    assert (message["content"][0]["text"], message["status"]) == ("more", "incomplete")


@pytest.mark.parametrize("cuts", [(), (57,), (3, 20, 60)])
def test_items_stand_in_the_order_of_the_text(cuts: tuple[int, ...]) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nDone.'
    plan = ToolPlan(FORMATS["hermes"], Offer(frozenset({"f"})), "", False)
    reader, output = CallReader(plan, "r", 0), Output(Items(Head("r", 0, MODEL, {}), Events(), {}))
    for start, stop in pairwise((0, *cuts, len(text))):
        output.take(Said(parts=reader.read(text[start:stop], stop == len(text))), [])
    output.end("completed")
    assert [item["type"] for item in output.blocks] == ["function_call", "message"]


async def test_thoughts_come_first(fake: FakeTokenizer) -> None:
    fake.script = saying(("hm", 1), (" so", 1), ("Yes.", 0))
    async with running(fake.address) as gateway, in_process(gateway) as client:
        events = await both(client, ask(reasoning={"effort": "low", "summary": "auto"}))
    thoughts, answer = events[-1]["response"]["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "hm so"}]
    assert "encrypted_content" not in thoughts  # Open Responses wants a text there, or nothing
    assert answer["content"][0]["text"] == "Yes."
    (request,) = list(fake.streams[-1].requests_seen.values())[-1:]
    assert json.loads(request.chat.template_kwargs_json)["enable_thinking"] is True


async def test_logprobs(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "Hi", 11, logprob=-0.5)
        stream.token(slot, "", 12, logprob=-1.5)  # half a character is held back
        stream.token(slot, " ☃", 13, logprob=-2.5)
        stream.finish(slot)

    fake.script = run
    events = await both(client, ask(include=["message.output_text.logprobs"], top_logprobs=2))
    rows = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert [row["logprob"] for row in rows] == [-0.5, -1.5, -2.5]
    assert events[-1]["response"]["top_logprobs"] == 2
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [row for event in deltas for row in event["logprobs"]] == rows
    for more in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}, {}):
        assert (await client.post("/v1/responses", json=ask(**more))).status_code == 200
        *_, request = fake.streams[-1].requests_seen.values()
        assert request.limits.HasField("logprobs") == bool(more)


async def test_a_conversation_comes_back_as_it_was_said(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be"}]},
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed",
         "content": [{"type": "reasoning_text", "text": "look it up"}], "encrypted_content": None},
        {"type": "reasoning", "id": "rs_2",
         "summary": [{"type": "summary_text", "text": "or not"}], "content": []},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I ask.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"type": "function_call_output", "call_id": "c2",
         "output": [{"type": "input_text", "text": "one"}]},
        {"role": "assistant", "content": "Noon."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Or one."}]},
        {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "hidden"},
        {"type": "reasoning", "id": "rs_4", "encrypted_content": "hidden"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"},
                                     {"type": "input_text", "text": "b"}]},
    ]  # fmt: skip
    assert (await client.post(URL, json=ask(input=items))).status_code == 200
    (request,) = fake.streams[-1].requests_seen.values()
    function = {"name": "now", "arguments": "{}"}
    assert json.loads(request.chat.messages_json) == [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I ask.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
            "reasoning_content": "look it up\nor not",
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "tool", "content": "one", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Noon."},
        {"role": "assistant", "content": "Or one."},
        {"role": "user", "content": "a\nb"},
    ]


async def test_what_is_said_behind_a_call_is_of_its_turn(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """A result stands behind the turn that called, or templates refuse it: so chats have it."""
    call = {"type": "function_call", "name": "now", "arguments": "{}"}
    thoughts = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "and again"}]}
    items = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "I ask."},
        {**call, "call_id": "c1"},
        {"role": "assistant", "content": "\nTwice."},
        thoughts,
        {**call, "call_id": "c2"},
        *({"type": "function_call_output", "call_id": c, "output": "noon"} for c in ("c1", "c2")),
    ]
    assert (await client.post(URL, json=ask(input=items))).status_code == 200
    (request,) = fake.streams[-1].requests_seen.values()
    _, said, *results = json.loads(request.chat.messages_json)
    assert (said["content"], said["reasoning_content"]) == ("I ask.\nTwice.", "and again")
    assert [one["id"] for one in said["tool_calls"]] == ["c1", "c2"]
    assert [one["tool_call_id"] for one in results] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ({"type": "json_schema", "name": "form", "schema": SCHEMA, "strict": True},
         Grammar.JSON_SCHEMA),
        ({"type": "json_object"}, Grammar.JSON_SCHEMA),
        ({"type": "text"}, None),
    ],
)  # fmt: skip
async def test_the_form_of_an_answer(
    client: httpx.AsyncClient, fake: FakeTokenizer, shape: dict[str, Any], kind: Any
) -> None:
    whole = (await client.post(URL, json=ask(text={"format": shape}))).json()
    assert whole["text"]["format"] == shape
    (request,) = fake.streams[-1].requests_seen.values()
    assert (request.text.grammar.kind if request.text.HasField("grammar") else None) == kind


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (ask(input=[]), "input"),
        (ask(input=[{"type": "item_reference", "id": "x"}]), "input[0].type"),
        (ask(input=[{"role": "user"}]), "input[0].content"),
        (ask(input=[{"role": "nobody", "content": ""}]), "input[0].role"),
        (ask(input=[{"role": "user", "content": [{"type": "input_image"}]}]),
         "input[0].content[0].type"),
        (ask(input=[{"role": "user", "content": [{"type": "input_text"}]}]),
         "input[0].content[0].text"),
        (ask(input=[{"role": "user", "content": [{"type": "input_text", "text": 5}]}]),
         "input[0].content[0].text"),
        (ask(input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 257}]),
         "input[0].content"),
        (ask(input=[{"type": "reasoning", "summary": []}] * 4097), "input"),
        (ask(input=[{"type": "function_call", "call_id": "c", "name": "n"}]), "input[0].arguments"),
        (ask(input=[CALL] * 129), "input[128]"),
        (ask(max_output_tokens=-1), "max_output_tokens"),
        (ask(temperature=9), "temperature"),
        (ask(top_logprobs=500), "top_logprobs"),
        (ask(previous_response_id="resp_1"), "previous_response_id"),
        (ask(store=True), "store"),
        (ask(background=True), "background"),
        (ask(truncation="auto"), "truncation"),
        (ask(max_tokens=5), "max_tokens"),
        (ask(tools=[{"type": "file_search"}]), "tools[0].type"),
        (ask(tools=[{"type": "web_search_preview"}], tool_choice="required"), "tool_choice"),
        (ask(tools=[{"type": "namespace", "name": "n", "tools": [{"type": "x", "name": "f"}]}]),
         "tools[0].tools[0].type"),
        (ask(tools=[{"type": "namespace", "name": "n" * 116, "tools": [TOOL]}]),
         "tools[0].tools[0].name"),
        (ask(tools=[{**TOOL, "name": "a b"}]), "tools[0].name"),
        (ask(tools=[SEARCH, {**TOOL, "name": "a b"}]), "tools[1].name"),
        (ask(tools=[{"type": "namespace", "name": "n", "tools": [TOOL, TOOL]}, TOOL]),
         "tools[0].tools[1].name"),
        (ask(tools=[{"type": "namespace", "name": "n", "tools": [TOOL]}, SEARCH,
                    {**TOOL, "parameters": {"type": "array"}}]), "tools[2].parameters.type"),
        (ask(tool_choice="required", tools=[SEARCH, {"type": "function", "name": "n",
                                            "parameters": {"enum": [2**60 + 1]}}]),
         "tools[1].parameters"),
        (ask(tools=[TOOL], tool_choice={"type": "function", "name": "x"}), "tool_choice.name"),
        (ask(text={"format": {"type": "json_schema", "name": "n"}}), "text.format.schema"),
        (ask(text={"format": {"type": "json_schema", "name": "a b", "schema": {}}}),
         "text.format.name"),
        (ask(text={"format": {"type": "json_object", "schema": {}}}), "text.format.schema"),
        (ask(reasoning={"effort": "huge"}), "reasoning.effort"),
        (ask(reasoning={"summary": "long"}), "reasoning.summary"),
        (ask(include=["file_search_call.results"]), "include[0]"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_named(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    reply = await client.post(URL, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert "messages" not in error["message"] and "response_format" not in error["message"]


async def test_errors_from_below_name_the_clients_fields(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def run(stream: Stream, slot: int) -> None:
        detail = {"kind": "InvalidRequest", "message": "max_tokens 9 is too many"}
        stream.fail(slot, ERROR, param="max_tokens", code="context_length_exceeded", **detail)

    fake.script = run
    for more in ({}, {"stream": True}):
        error = (await client.post(URL, json=ask(**more))).json()["error"]
        assert error["param"] == "max_output_tokens"
        assert error["message"] == "max_output_tokens 9 is too many"


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("text.format", {"text": {"format": {"type": "json_object"}}}),
        ("structured_outputs", {"structured_outputs": {"json": {}}}),
    ],
)
async def test_a_form_that_cannot_be_kept_to_is_blamed_on_its_field(
    client: httpx.AsyncClient, fake: FakeTokenizer, field: str, more: dict[str, Any]
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        said = {"message": "response_format: no", "param": "response_format"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", code="invalid_grammar", **said)

    fake.script = refuse
    error = (await client.post(URL, json=ask(**more))).json()["error"]
    assert (error["param"], error["message"]) == (field, f"{field}: no")


async def test_functions_of_a_namespace(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    """As Codex offers those of an MCP server, beside a search that is the host's."""
    call = {"name": "mcp__calc__add", "arguments": {}}
    text = f"{W}\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    fake.script = saying(*((character, 0) for character in text))
    add = {"type": "function", "name": "add", "mine": None, "parameters": {"type": "object"}}
    calc = {"type": "namespace", "name": "mcp__calc", "description": "sums", "tools": [add]}
    hosted = {"type": "web_search", "external_web_access": True}
    said = {"type": "function_call", "namespace": "mcp__calc", "name": "add", "call_id": "c"}
    history = [{"role": "user", "content": "sum"}, {**said, "arguments": "{}"}]
    output = [{"type": "input_text", "text": "3"}, {"type": "input_image", "image_url": "data:"}]
    history.append({"type": "function_call_output", "call_id": "c", "output": output})
    body = ask(input=history, tools=[hosted, TOOL, calc], tool_choice="auto", request_id="same")
    body["include"] = ["web_search_call.action.sources"]
    events = await both(client, body)
    told = events[-1]["response"]
    weather, added = told["output"]
    assert weather["name"] == "get_weather" and "namespace" not in weather
    assert (added["namespace"], added["name"]) == ("mcp__calc", "add")
    (first,) = [e["item"] for e in events if e["type"].endswith("added") and e["output_index"] == 1]
    assert (first["namespace"], first["name"]) == ("mcp__calc", "add")
    assert [tool["type"] for tool in told["tools"]] == ["function", "namespace"]
    seen = list(fake.streams[-1].requests_seen.values())[-1]
    shown = [tool["function"]["name"] for tool in json.loads(seen.chat.tools_json)]
    assert shown == ["get_weather", "mcp__calc__add"]
    _, calling, result = json.loads(seen.chat.messages_json)
    assert calling["tool_calls"][0]["function"]["name"] == "mcp__calc__add"
    assert result["content"] == "3\n[an image, which this model cannot see: it reads text]"


async def test_what_a_function_gives_back_is_shown_and_repeated(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(("hi", 0))
    gives = {"return": {"type": "string"}, "response": {"type": "dict"}}
    told = (await client.post(URL, json=ask(tools=[TOOL, {**TOOL, "name": "f", **gives}]))).json()
    plain, more = told["tools"]
    assert more == {**plain, "name": "f", **gives} and not gives.keys() & plain.keys()
    seen = list(fake.streams[-1].requests_seen.values())[-1]
    plain, more = [tool["function"] for tool in json.loads(seen.chat.tools_json)]
    assert more == {**plain, "name": "f", **gives} and not gives.keys() & plain.keys()


async def test_a_name_may_be_as_long_as_any_with_its_namespace(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    space = {"type": "namespace", "name": "n" * 115, "tools": [TOOL]}
    assert (await client.post(URL, json=ask(tools=[space]))).status_code == 200
    (request,) = fake.streams[-1].requests_seen.values()
    (shown,) = json.loads(request.chat.tools_json)
    assert len(shown["function"]["name"]) == 128


async def test_effort_is_no_error_where_there_are_no_thoughts(fake: FakeTokenizer) -> None:
    fake.info = ModelInfo(id=MODEL, max_model_len=4096)
    body = ask(reasoning={"effort": "medium", "summary": "detailed"})
    async with running(fake.address) as gateway, in_process(gateway) as client:
        assert (await client.post(URL, json=body)).status_code == 200


async def test_fields_of_vllms_form_go_down_the_line(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    more = {
        "ignore_eos": True, "stop": "x", "stop_token_ids": [4], "logit_bias": {"7": 1.5},
        "include_stop_str_in_output": True, "skip_special_tokens": False,
        "thinking_token_budget": 9,
    }  # fmt: skip
    body = ask(**more, chat_template_kwargs={"a": 1}, structured_outputs={"regex": "H.*"})
    assert (await client.post(URL, json=body)).status_code == 200
    seen = list(fake.streams[-1].requests_seen.values())[-1]
    assert (seen.text.ignore_eos, list(seen.text.stop)) == (True, ["x"])
    assert (list(seen.text.stop_token_ids), seen.text.grammar.text) == ([4], "H.*")
    assert seen.text.include_stop and seen.text.keep_special_tokens
    assert (seen.sampling.logit_bias[0].bias, seen.text.thinking_token_budget) == (1.5, 9)
    assert json.loads(seen.chat.template_kwargs_json) == {"a": 1}


async def test_a_prompt_refused_below_is_called_input(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def run(stream: Stream, slot: int) -> None:
        detail = {"kind": "InvalidRequest", "message": "the prompt has 9000"}
        stream.fail(slot, ERROR, param="messages", code="context_length_exceeded", **detail)

    fake.script = run
    assert (await client.post(URL, json=ask())).json()["error"]["param"] == "input"


async def test_names_of_the_client_stay_its_own(client: httpx.AsyncClient) -> None:
    twice = [{"type": "function", "name": "messages"}] * 2
    error = (await client.post(URL, json=ask(tools=twice))).json()["error"]
    assert "'messages'" in error["message"]
    for name in ("send_messages", "get-messages-now"):
        choice = {"type": "function", "name": name}
        error = (await client.post(URL, json=ask(tools=[TOOL], tool_choice=choice))).json()["error"]
        assert name in error["message"] and error["param"] == "tool_choice.name"


@pytest.mark.parametrize("tools", [{}, {"tools": []}])
async def test_auto_may_stand_without_tools(
    client: httpx.AsyncClient, tools: dict[str, Any]
) -> None:
    """It is what a response repeats of a request that chose nothing."""
    whole = await client.post(URL, json=ask(tool_choice="auto", **tools))
    assert (whole.status_code, whole.json()["tool_choice"]) == (200, "auto")
    forced = await client.post(URL, json=ask(tool_choice="required", **tools))
    assert forced.json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize(
    ("kind", "word"), [("Internal", "server_error"), ("Overloaded", "rate_limit_exceeded")]
)
async def test_a_stream_that_fails_says_so(
    client: httpx.AsyncClient, fake: FakeTokenizer, kind: str, word: str
) -> None:
    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "Hel")
        stream.fail(slot, ERROR, kind=kind, message="broken", code="worker_failed")

    fake.script = run
    *_, closed, last = sent((await client.post(URL, json=ask(stream=True))).text)
    assert closed["type"] == "response.output_item.done"
    assert last["response"]["output"] == [closed["item"]]
    assert closed["item"]["status"] == "incomplete"
    assert closed["item"]["content"][0]["text"] == "Hel"
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {
        "code": word,
        "reason": "worker_failed",
        "message": "broken",
    }
    assert last["response"]["usage"]["output_tokens"] == 1


async def test_tokens_are_counted(client: httpx.AsyncClient) -> None:
    reply = await client.post(f"{URL}/input_tokens", json=ask(tools=TOOLS))
    assert reply.json()["object"] == "response.input_tokens"
    assert reply.json()["input_tokens"] > 0


@pytest.fixture
async def sdk(fake: FakeTokenizer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(fake.address) as (_, url):
        async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as made:
            yield made


async def test_openais_client_streams_parses_and_calls(
    sdk: openai.AsyncOpenAI, fake: FakeTokenizer
) -> None:
    whole = await sdk.responses.create(model=MODEL, input="hi")
    assert whole.output_text == TEXT
    async with sdk.responses.stream(model=MODEL, input="hi") as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text == TEXT
    fake.script = echo(W)
    async with sdk.responses.stream(model=MODEL, input="hi", tools=[TOOL]) as stream:  # type: ignore[list-item]
        async for _ in stream:
            pass
        called = (await stream.get_final_response()).output[-1]
    assert called.type == "function_call" and called.arguments == ARGUMENTS


async def test_two_gateways_streams_go_on_after_a_loss(
    served: tuple[Gateway, httpx.AsyncClient], fake: FakeTokenizer
) -> None:
    """A stream whose tokenizer breaks off is replayed, and nothing of it comes twice."""
    _, client = served
    broken: list[bool] = []

    def run(stream: Stream, slot: int) -> None:
        if broken:
            echo()(stream, slot)
            return
        broken.append(True)
        stream.start(slot)
        stream.token(slot, "Hello")
        stream.break_off()

    fake.script = run
    events = sent((await client.post(URL, json=ask(stream=True))).text)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == TEXT


async def test_who_points_at_what_is_stored_is_told_how_not_to(client: httpx.AsyncClient) -> None:
    """The AI SDK does so in each second turn, unless it is told to store nothing."""
    reply = await client.post(URL, json=ask(input=[{"type": "item_reference", "id": "msg_1"}]))
    assert "store: false" in reply.json()["error"]["message"]
