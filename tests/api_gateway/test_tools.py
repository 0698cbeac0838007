"""Tools in chat: what goes down the line, what comes back, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from api_gateway.parsers.hermes import Hermes
from protos.common_pb2 import IGNORED, LENGTH, Grammar, ModelInfo
from tests.api_gateway.conftest import in_process, running
from tests.api_gateway.requests import chat, events, tool
from tests.support.fake_tokenizer import MODEL, FakeTokenizer, Stream

URL = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [tool("get_weather", description="of a city", parameters=CITY), tool("now")]
ARGUMENTS = '{"city": "Zürich"}'
W = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
N = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def saying(*texts: str, **finish: Any) -> Callable[[Stream, int], None]:
    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        for text in texts:
            stream.token(slot, text)
        stream.finish(slot, **finish)

    return run


def summed(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], str | None]:
    """Return the message and the reason of a stream as clients put them together."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    reason = None
    for choice in [c for chunk in chunks for c in chunk["choices"]]:
        reason = choice["finish_reason"] or reason
        delta = choice["delta"]
        indices = [call["index"] for call in delta.get("tool_calls", [])]
        assert len(set(indices)) == len(indices), "stock clients take one entry a call and chunk"
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append({k: call[k] for k in ("id", "type")})
                message["tool_calls"][-1]["function"] = dict(call["function"])
            else:
                held = message["tool_calls"][call["index"]]["function"]
                held["arguments"] += call["function"]["arguments"]
    return message, reason


@pytest.mark.parametrize("cut", [1, 3, 1000])
async def test_calls_come_out_streamed_as_unstreamed(
    client: httpx.AsyncClient, fake: FakeTokenizer, cut: int
) -> None:
    text = f"Let me see.\n{W}\n{N}\n"
    fake.script = saying(*(text[at : at + cut] for at in range(0, len(text), cut)))
    body = chat(tools=TOOLS, request_id="same")
    whole = (await client.post(URL, json=body)).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Let me see."
    called = [call["function"] for call in whole["message"]["tool_calls"]]
    assert called == [
        {"name": "get_weather", "arguments": ARGUMENTS},
        {"name": "now", "arguments": "{}"},
    ]
    ids = [call["id"] for call in whole["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(i.startswith("call_") for i in ids)
    stream = events((await client.post(URL, json={**body, "stream": True})).text)
    message, reason = summed(stream)
    assert reason == "tool_calls"
    assert message == {k: whole["message"][k] for k in ("content", "tool_calls")}


async def test_a_call_alone_has_null_content(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(W)
    message = (await client.post(URL, json=chat(tools=TOOLS))).json()["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


async def test_a_whole_call_may_lack_its_end_tag(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    for text in (W[:-3], W[: -len("</tool_call>")]):
        fake.script = saying(*text)
        whole = (await client.post(URL, json=chat(tools=TOOLS))).json()["choices"][0]
        assert whole["finish_reason"] == "tool_calls" and len(whole["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "text, finish, reason",
    [
        (W[:-14], {}, "stop"),
        (N.replace("now", "rm"), {}, "stop"),
        (W[:40], {"reason": LENGTH}, "length"),
    ],
)
async def test_what_is_no_whole_call_stays_content(
    client: httpx.AsyncClient, fake: FakeTokenizer, text: str, finish: dict[str, Any], reason: str
) -> None:
    fake.script = saying(*text, **finish)
    whole = (await client.post(URL, json=chat(tools=TOOLS))).json()["choices"][0]
    assert whole["message"]["content"] == text and "tool_calls" not in whole["message"]
    stream = events((await client.post(URL, json=chat(tools=TOOLS, stream=True))).text)
    assert summed(stream) == ({"content": text, "tool_calls": []}, reason)
    assert whole["finish_reason"] == reason


async def sent(client: httpx.AsyncClient, fake: FakeTokenizer, **more: Any) -> tuple[Any, Grammar]:
    """Return the template's tools and the grammar of a request."""
    reply = await client.post(URL, json=chat(**more))
    assert reply.status_code == 200, reply.text
    slot = max(fake.streams[-1].requests_seen)
    request = fake.streams[-1].requests_seen[slot]
    tools = request.chat.tools_json
    return json.loads(tools) if tools else None, request.text.grammar


async def test_the_template_sees_tools_in_the_order_that_models_were_trained_on(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(W)
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "b": 1, "a": 2}}
    for given in ({"type": "function", "function": function}, {"function": function}):
        await client.post(URL, json=chat(tools=[given]))
        seen = fake.streams[-1].requests_seen
        text = seen[max(seen)].chat.tools_json.decode()
        assert text == json.dumps([{"type": "function", "function": function}]).replace(" ", "")


@pytest.mark.parametrize("field", ["return", "response"])
async def test_the_template_sees_what_a_function_gives_back(
    client: httpx.AsyncClient, fake: FakeTokenizer, field: str
) -> None:
    """As transformers' get_json_schema writes it, and the Berkeley leaderboard."""
    fake.script = saying(W)
    gives = {"type": "dict", "properties": {"sky": {"type": "string"}}}
    function = {"name": "f", "parameters": CITY, field: gives}
    for choice in ("auto", "required"):
        tools, _ = await sent(client, fake, tools=[{"function": function}], tool_choice=choice)
        assert tools == [{"type": "function", "function": function}]
        assert list(tools[0]["function"]) == list(function)
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep}
    body = chat(tools=[{"function": function | {field: deep}}])
    error = (await client.post(URL, json=body)).json()["error"]
    assert error["param"] == f"tools[0].function.{field}"


async def test_marks_for_caches_on_tools_change_nothing(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """litellm passes them on to what it takes for OpenAI, with the tool or within its function."""
    fake.script = saying(W)
    mark = {"cache_control": {"type": "ephemeral"}}
    function = {"name": "f", "parameters": CITY}
    plain = [{"type": "function", "function": function}]
    for marked in ({"function": function, **mark}, {"function": {**function, **mark}}):
        for choice in ("auto", "required"):
            tools, _ = await sent(client, fake, tools=[marked], tool_choice=choice)
            assert tools == plain
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [{**plain[0], **mark}]}
    reply = await client.post("/v1/chat/completions/input_tokens", json=asked)
    assert reply.status_code == 200, reply.text
    seen = fake.streams[-1].requests_seen
    assert json.loads(seen[max(seen)].chat.tools_json) == plain


async def test_whole_numbers_of_any_size_reach_the_template_and_the_grammar(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(W)
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 2**100}}}
    big = {"type": "function", "function": {"name": "f", "parameters": schema}}
    tools, grammar = await sent(client, fake, tools=[big], tool_choice="required")
    assert tools == [big] and str(2**100) in grammar.text
    asked = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    }
    assert str(2**100) in (await sent(client, fake, **asked))[1].text


async def test_the_template_sees_tools_unless_none_may_be_called(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(W)
    tools, grammar = await sent(client, fake, tools=TOOLS)
    assert tools == TOOLS and grammar.kind == Grammar.NONE
    tools, grammar = await sent(client, fake, tools=TOOLS, tool_choice="none")
    assert tools is None and grammar.kind == Grammar.NONE
    message = (await client.post(URL, json=chat(tools=TOOLS, tool_choice="none"))).json()
    assert message["choices"][0]["message"]["content"] == W


HERMES_REQUIRED = """\
start: calls
calls: call ("\\n" call)*
call: call_0 | call_1
call_0: "<tool_call>" "\\n" "{\\"name\\": \\"get_weather\\", \\"arguments\\": " arguments_0 "}" "\\n" "</tool_call>"
arguments_0: %json {"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}, "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}
call_1: "<tool_call>" "\\n" "{\\"name\\": \\"now\\", \\"arguments\\": " arguments_1 "}" "\\n" "</tool_call>"
arguments_1: %json {"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}, "type": "object", "properties": {}, "additionalProperties": false}
"""  # noqa: E501


async def test_forced_calls_go_through_a_grammar(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(N)
    tools, grammar = await sent(client, fake, tools=TOOLS, tool_choice="required")
    assert (tools, grammar) == await sent(client, fake, tools=TOOLS, tool_choice="any")  # Mistral's
    assert tools == TOOLS
    assert (grammar.kind, grammar.text) == (Grammar.LARK, HERMES_REQUIRED)
    _, single = await sent(
        client, fake, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    assert single.text == HERMES_REQUIRED.replace('call ("\\n" call)*', "call")
    named = {"type": "function", "function": {"name": "now"}}
    tools, grammar = await sent(client, fake, tools=TOOLS, tool_choice=named)
    assert tools == TOOLS and "get_weather" not in grammar.text and ")*" not in grammar.text
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
    _, either = await sent(client, fake, tools=TOOLS, response_format=form)
    assert either.text.startswith("start: calls | answer\nanswer: %json {")
    _, forced = await sent(client, fake, tools=TOOLS, tool_choice="required", response_format=form)
    assert forced.text == HERMES_REQUIRED, "a call that must come leaves nothing else to form"


async def test_of_calls_that_no_grammar_holds_none_is_made(
    client: httpx.AsyncClient, fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All streams wait meanwhile: of fifty tools it is a twelfth of a second."""

    def refuse(*_: object) -> str:
        raise AssertionError

    monkeypatch.setattr(Hermes, "grammar", refuse)
    monkeypatch.setattr("msgspec.structs.fields", refuse)  # looks all hints of the types up
    fake.script = saying(W)
    for more in ({}, {"tool_choice": "auto", "response_format": {"type": "text"}}):
        reply = await client.post(URL, json=chat(tools=TOOLS, **more))
        assert reply.json()["choices"][0]["finish_reason"] == "tool_calls"


def described(index: int) -> dict[str, Any]:
    """A function of a name and 1,500 characters on what it is for."""
    words = {"title": "t" * 500, "description": "d" * 500, "$comment": "c" * 500}
    inner = {"title": {"type": "string", **words}, "description": {"enum": ["title"]}}
    parameters = {"type": "object", "properties": inner, "required": ["title"]}
    return tool(f"f{index}", parameters=parameters)


async def test_what_a_schema_says_to_people_is_no_part_of_its_grammar(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """The tools of an agent have more of it than any grammar may be long."""
    body = chat(tools=[described(k) for k in range(50)], tool_choice="required")
    fake.script = saying('<tool_call>\n{"name": "f0", "arguments": {"title": ""}}\n</tool_call>')
    assert (await client.post(URL, json=body)).status_code == 200
    (request,) = fake.streams[-1].requests_seen.values()
    bound = request.text.grammar.text.partition("arguments_0: %json ")[2].partition("\n")[0]
    inner = {"title": {"type": "string"}, "description": {"enum": ["title"]}}
    assert json.loads(bound)["properties"] == inner
    assert "d" * 500 in request.chat.tools_json.decode()


async def test_a_grammar_that_is_too_long_is_not_made_to_its_end(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(schema: Any) -> Any:
        made.append(schema)
        return schema

    monkeypatch.setattr("api_gateway.parsers.call_grammar.binding", counted)
    large = {"type": "object", "properties": {"a": {"enum": ["x" * 60_000]}}}
    tools = [tool(f"f{k}", parameters=large) for k in range(60)]
    reply = await client.post(URL, json=chat(tools=tools, tool_choice="required"))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
    assert len(made) == 2


async def test_tags_that_are_tokens_are_called_by_name(fake: FakeTokenizer) -> None:
    tags = ["<tool_call>", "</tool_call>"]
    fake.info = ModelInfo(id=MODEL, tool_format="hermes", tag_tokens=tags)
    async with running(fake.address) as gateway, in_process(gateway) as http:
        _, grammar = await sent(http, fake, tools=TOOLS, tool_choice="required")
    wanted = HERMES_REQUIRED
    for tag in tags:
        wanted = wanted.replace(f'"{tag}"', tag)
    assert grammar.text == wanted


async def test_forced_arguments_flow_and_a_cut_call_is_length(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(W[:50], W[50:60], reason=LENGTH)
    body = chat(tools=TOOLS, tool_choice="required")
    whole = (await client.post(URL, json=body)).json()["choices"][0]
    assert whole["finish_reason"] == "length" and whole["message"]["content"] is None
    function = whole["message"]["tool_calls"][0]["function"]
    assert function["name"] == "get_weather" and ARGUMENTS.startswith(function["arguments"])
    stream = events((await client.post(URL, json={**body, "stream": True})).text)
    assert summed(stream)[0]["tool_calls"][0]["function"] == function


@pytest.mark.parametrize("begun", ["<", '<tool_call>\n{"name', '<tool_call>\n{"name": "get_we'])
async def test_a_forced_call_that_is_cut_before_its_name_is_no_content(
    client: httpx.AsyncClient, fake: FakeTokenizer, begun: str
) -> None:
    for before, num_calls in (("", 0), (f"{W}\n", 1)):
        fake.script = saying(before, begun, reason=LENGTH)
        body = chat(tools=TOOLS, tool_choice="required")
        whole = (await client.post(URL, json=body)).json()["choices"][0]
        assert whole["finish_reason"] == "length" and not whole["message"]["content"]
        assert len(whole["message"].get("tool_calls", [])) == num_calls
        stream = events((await client.post(URL, json={**body, "stream": True})).text)
        assert not summed(stream)[0]["content"] and summed(stream)[1] == "length"


@pytest.mark.parametrize(("end", "reason"), [(60, "stop"), (W.index("}}") + 1, "tool_calls")])
async def test_a_call_cut_by_a_stop_string_is_none_to_run(
    client: httpx.AsyncClient, fake: FakeTokenizer, end: int, reason: str
) -> None:
    """Whole arguments can be run, with or without the tag behind them."""
    fake.script = saying(W[:50], W[50:end], stop_string="}")
    body = chat(tools=TOOLS, tool_choice="required")
    whole = (await client.post(URL, json=body)).json()["choices"][0]
    assert whole["finish_reason"] == reason and whole["stop_reason"] == "}"
    stream = events((await client.post(URL, json={**body, "stream": True})).text)
    assert summed(stream)[1] == reason


async def test_one_call_at_most_without_parallel_calls(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = saying(f"{W}\n{N}")
    body = chat(tools=TOOLS, parallel_tool_calls=False)
    message = (await client.post(URL, json=body)).json()["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]


async def test_other_formats_and_models_without_one(fake: FakeTokenizer) -> None:
    fake.script = saying('{"name": "now", "parameters": {}}')
    fake.info = ModelInfo(id=MODEL, tool_format="llama3")
    async with running(fake.address) as gateway, in_process(gateway) as http:
        message = (await http.post(URL, json=chat(tools=TOOLS))).json()["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    fake.script = saying('[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "a"}]')
    fake.info = ModelInfo(id=MODEL, tool_format="mistral")
    async with running(fake.address) as gateway, in_process(gateway) as http:
        message = (await http.post(URL, json=chat(tools=TOOLS))).json()["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
        _, grammar = await sent(http, fake, tools=TOOLS, tool_choice="required")
        assert grammar.text.startswith('start: calls\ncalls: "[" call (", " call)* "]"\n')
    fake.info = ModelInfo(id=MODEL)
    fake.script = saying(N)
    async with running(fake.address) as gateway, in_process(gateway) as http:
        refused = await http.post(URL, json=chat(tools=TOOLS))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "tools_not_supported"
        forced = await http.post(URL, json=chat(tools=TOOLS, tool_choice="required"))
        assert forced.json()["choices"][0]["finish_reason"] == "tool_calls"
        asked = await http.post(URL, json=chat(reasoning_effort="low"))  # it is asked of all models
        assert asked.status_code == 200


async def test_calls_in_history_reach_the_template(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "9"}]},
        {"role": "assistant", "content": None, "reasoning": "hm"},
        {"role": "user", "content": "thanks"},
    ]
    assert (await client.post(URL, json=chat(messages=history))).status_code == 200
    request = fake.streams[-1].requests_seen[1]
    assert json.loads(request.chat.messages_json) == [
        history[0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "9", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        history[4],
    ]


async def test_what_a_client_has_parsed_of_an_answer_may_come_back_with_it(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """OpenAI's clients write it into the message that their callers append to the history, and
    litellm what of our message it does not know, `refusal` among it."""
    function = {"name": "now", "arguments": '{"a": 1}'}
    call = {"id": "call_1", "type": "function", "function": function}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    read = {**call, "function": {**function, "parsed_arguments": {"a": 1}}}
    unread = {**call, "function": {**function, "parsed_arguments": None}}
    result = {"role": "tool", "content": "9", "tool_call_id": "call_1"}
    answer = {"role": "assistant", "content": '{"b": 2}'}
    plain = [{"role": "user", "content": "time?"}, called, result, called, result, answer]
    sent = [
        {"role": "user", "content": "time?"},
        {**called, "tool_calls": [read], "parsed": None},
        result,
        {**called, "tool_calls": [unread]},
        result,
        {**answer, "parsed": {"b": 2}, "provider_specific_fields": {"refusal": None}},
    ]
    reply = await client.post(URL, json=chat(messages=sent))
    assert reply.status_code == 200, reply.text
    assert json.loads(fake.streams[-1].requests_seen[1].chat.messages_json) == plain


async def test_what_clients_write_into_an_answer_unasked_says_nothing(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """Mistral's clients a `prefix`, Cerebras' the places that calls have in streams alone."""
    call = {"type": "function", "function": {"name": "now", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"role": "assistant", "content": "9"}
    sent = [
        {"role": "user", "content": "time?"},
        {**said, "tool_calls": [{**call, "id": None, "index": None}], "prefix": False},
        {**answer, "prefix": False},
    ]
    reply = await client.post(URL, json=chat(messages=sent))
    assert reply.status_code == 200, reply.text
    seen = json.loads(fake.streams[-1].requests_seen[1].chat.messages_json)
    assert seen == [sent[0], said, answer]
    error = (await client.post(URL, json=chat(messages=[{**answer, "prefix": True}]))).json()
    assert error["error"]["param"] == "messages[0].prefix"


async def test_results_as_qwen_agent_sends_them_answer_their_call(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """With its `use_raw_api`: the call's id stands in `id`, and once more in its own `extra`."""
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    called = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "content": "9", "name": "now"}
    sent = [
        {"role": "user", "content": "time?"},
        called,
        {**result, "extra": {"function_id": "call_1"}, "id": "call_1"},
    ]
    reply = await client.post(URL, json=chat(messages=sent))
    assert reply.status_code == 200, reply.text
    seen = json.loads(fake.streams[-1].requests_seen[1].chat.messages_json)
    assert seen[2] == {**result, "tool_call_id": "call_1"}
    error = (await client.post(URL, json=chat(messages=[*sent[:2], result]))).json()
    assert error["error"]["param"] == "messages[2].tool_call_id"


async def test_integers_that_would_come_out_rounded_are_refused_where_they_bind(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def body(value: int, **more: Any) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"id": {"enum": [{"a": [value]}]}}}
        named = {"name": "f", "parameters": parameters}
        return chat(tools=[{"type": "function", "function": named}], **more)

    snowflake = 1152921504606846976
    refused = [
        (chat(structured_outputs={"json": {"const": snowflake}}), "structured_outputs.json"),
        (body(10**400, tool_choice="required"), "tools[0].function.parameters"),
        (body(-snowflake, response_format={"type": "json_object"}), "tools[0].function.parameters"),
    ]
    for sent, param in refused:
        reply = await client.post(URL, json=sent)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    for sent in (body(snowflake), body(2**53, tool_choice="required"), body(10**20)):
        assert (await client.post(URL, json=sent)).status_code == 200


async def test_a_schema_that_cannot_be_kept_to_is_blamed_on_the_field_it_stands_in(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        said = {"message": "response_format: no", "param": "response_format"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", code="invalid_grammar", **said)

    fake.script = refuse
    for field in ("structured_outputs", "response_format"):
        given = {"json": {}} if field == "structured_outputs" else {"type": "json_object"}
        reply = await client.post(URL, json=chat(**{field: given}))
        error = reply.json()["error"]
        assert (error["param"], error["message"]) == (field, f"{field}: no")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_length_that_does_not_fit_is_blamed_on_the_field_it_stands_in(
    client: httpx.AsyncClient, fake: FakeTokenizer, field: str
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        said = {"message": "max_tokens is 5: at most 3 are left", "param": "max_tokens"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", **said)

    fake.script = refuse
    error = (await client.post(URL, json=chat(**{field: 5}))).json()["error"]
    assert (error["param"], error["message"].split()[0]) == (field, field)


async def test_a_prompt_that_the_engine_refuses_is_blamed_on_the_messages(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        said = {"message": "the prompt has 9 tokens", "param": "prompt"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", **said)

    fake.script = refuse
    error = (await client.post(URL, json=chat())).json()["error"]
    assert (error["param"], error["message"]) == ("messages", "the prompt has 9 tokens")


async def test_a_schema_that_cannot_be_kept_to_is_blamed_on_the_tools(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        said = {"message": "structured_outputs: no", "param": "structured_outputs"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", code="invalid_grammar", **said)

    fake.script = refuse
    reply = await client.post(URL, json=chat(tools=TOOLS, tool_choice="required"))
    error = reply.json()["error"]
    assert (error["param"], error["message"]) == ("tools", "tools: no")


async def test_json_beside_tools_is_asked_for_in_either_field(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    shape = {"name": "a", "schema": schema}
    forms = [
        {"response_format": {"type": "json_schema", "json_schema": shape}},
        {"structured_outputs": {"json": schema}},
    ]
    told = []
    for form in forms:
        assert (await client.post(URL, json=chat(tools=TOOLS, **form))).status_code == 200
        requests = fake.streams[-1].requests_seen
        told.append(requests[max(requests)].text.grammar)
    assert told[0] == told[1] and "answer" in told[0].text


@pytest.mark.parametrize(("line", "blamed"), [(2, "response_format"), (6, "tools"), (8, "tools")])
async def test_of_a_joined_grammar_the_schema_that_is_wrong_is_named(
    client: httpx.AsyncClient, fake: FakeTokenizer, line: int, blamed: str
) -> None:
    """The client wrote neither the rules nor the lines, which llguidance shows behind its words."""

    def refuse(stream: Stream, slot: int) -> None:
        why = f'structured_outputs: at {line}(9): Unimplemented keys: ["not"]\n 1 | start: calls'
        said = {"message": why, "param": "structured_outputs"}
        stream.fail(slot, IGNORED, kind="InvalidRequest", code="invalid_grammar", **said)

    fake.script = refuse
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
    error = (await client.post(URL, json=chat(tools=TOOLS, response_format=form))).json()["error"]
    name = {6: "get_weather: ", 8: "now: "}.get(line, "")
    assert error["message"] == f'{blamed}: {name}Unimplemented keys: ["not"]'
    assert error["param"] == blamed
