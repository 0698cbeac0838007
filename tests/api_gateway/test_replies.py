"""What a reply shows beside plain text: thoughts, usage, progress, traces, the prompt's tokens."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from protos.common_pb2 import IGNORED, LENGTH, STOPPED, Grammar
from protos.tokenizer_pb2 import TextBatch, TextLogprobs
from tests.api_gateway.requests import chat, completion, events
from tests.support.fake_tokenizer import FakeTokenizer, Stream, echo, logprob_entry

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def thinking(stream: Stream, slot: int) -> None:
    stream.start(slot)
    stream.token(slot, "Hmm, ", channel=1)
    stream.token(slot, "ö.", channel=1)
    stream.token(slot, "42")
    stream.finish(slot, num_reasoning_tokens=2)


def deltas(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [c["delta"] for event in stream for c in event["choices"] if c["delta"]]


async def test_reasoning_comes_under_both_names(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = thinking
    whole = (await client.post(CHAT, json=chat())).json()
    message = whole["choices"][0]["message"]
    assert message["content"] == "42"
    assert message["reasoning"] == message["reasoning_content"] == "Hmm, ö."
    assert whole["usage"]["completion_tokens"] == 3
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert fake.streams[-1].requests_seen[1].text.split_reasoning
    for more in ({}, {"return_token_ids": True}):
        stream = events((await client.post(CHAT, json=chat(stream=True, **more))).text)
        shown = deltas(stream)[1:]
        assert "".join(d.get("reasoning_content", "") for d in shown) == "Hmm, ö."
        assert all(d.get("reasoning") == d.get("reasoning_content") for d in shown)
        assert "".join(d.get("content", "") for d in shown) == "42"


async def test_reasoning_can_be_left_out(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = thinking
    body = chat(include_reasoning=False)
    whole = (await client.post(CHAT, json=body)).json()
    assert whole["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    stream = events((await client.post(CHAT, json={**body, "stream": True})).text)
    assert deltas(stream)[1:] == [{"content": "42"}]


@pytest.mark.parametrize(
    ("reason", "word", "content"), [(LENGTH, "length", None), (STOPPED, "stop", "")]
)
async def test_content_is_null_when_the_limit_falls_into_the_thoughts(
    client: httpx.AsyncClient, fake: FakeTokenizer, reason: Any, word: str, content: str | None
) -> None:
    def cut(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "Hmm", channel=1)
        stream.finish(slot, reason, num_reasoning_tokens=1)

    fake.script = cut
    choice = (await client.post(CHAT, json=chat())).json()["choices"][0]
    assert choice["message"]["content"] == content and choice["finish_reason"] == word
    assert choice["message"]["reasoning"] == "Hmm"


@pytest.mark.parametrize(
    "more, kwargs",
    [
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "none"},
         {"enable_thinking": False}),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
         {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)  # fmt: skip
async def test_whether_and_how_much_to_think_reaches_the_template(
    client: httpx.AsyncClient, fake: FakeTokenizer, more: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    """Dify sends `thinking` to every server, and says it in chat_template_kwargs as well."""
    assert (await client.post(CHAT, json=chat(**more))).status_code == 200
    given = fake.streams[-1].requests_seen[1].chat.template_kwargs_json
    assert json.loads(given) == kwargs


@pytest.mark.parametrize("type_, effort", [("enabled", "none"), ("disabled", "low")])
async def test_thinking_and_an_effort_that_disagree_are_refused(
    client: httpx.AsyncClient, type_: str, effort: str
) -> None:
    reply = await client.post(CHAT, json=chat(thinking={"type": type_}, reasoning_effort=effort))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "thinking")


async def test_a_budget_of_thoughts_is_passed_on(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    for budget, told in ((0, 0), (512, 512), (-1, None), (None, None)):
        await client.post(CHAT, json=chat(thinking_token_budget=budget))
        text = fake.streams[-1].requests_seen[max(fake.streams[-1].requests_seen)].text
        has_one = text.HasField("thinking_token_budget")
        assert (text.thinking_token_budget if has_one else None) == told


async def test_progress_of_the_prompt(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    def slow(stream: Stream, slot: int) -> None:
        stream.start(slot, 1000)
        stream.progress(slot, 1000, 16, 512)
        stream.token(slot, "x")
        stream.finish(slot)

    fake.script = slow
    stream = events((await client.post(CHAT, json=chat(stream=True, return_progress=True))).text)
    told = [event["prompt_progress"] for event in stream if "prompt_progress" in event]
    assert len(told) == 1 and told[0].pop("time_ms") > 0
    assert told[0] == {"index": 0, "total": 1000, "cache": 16, "processed": 512}
    assert fake.streams[-1].requests_seen[1].limits.report_progress


def traced(stream: Stream, slot: int) -> None:
    stream.start(slot)
    for index, text in enumerate("ab"):
        stream.bulk(slot, trace_json=json.dumps({"index": index, "stages": []}).encode())
        stream.token(slot, text)
    stream.bulk(slot, trace_json=b'{"index":1,"stages":[]}')  # a replay says it again
    stream.finish(slot)


async def test_the_samplers_trace(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = traced
    wanted = [{"index": 0, "stages": []}, {"index": 1, "stages": []}]
    for path, body in ((CHAT, chat()), (COMPLETIONS, completion())):
        body["return_sampler_trace"] = True
        whole = (await client.post(path, json=body)).json()["choices"][0]
        assert whole["sampler_trace"] == wanted
        stream = events((await client.post(path, json={**body, "stream": True})).text)
        choices = [choice for event in stream for choice in event["choices"]]
        assert [t for c in choices for t in c.get("sampler_trace", [])] == wanted
    assert fake.streams[-1].requests_seen[1].sampling.return_sampler_trace


def prompted(stream: Stream, slot: int) -> None:
    stream.start(slot, 3)
    stream.prompt_logprobs(slot, "a", "b", first=0)
    stream.prompt_logprobs(slot, "b", "cd")  # a replay repeats what is known
    stream.token(slot, "ef", logprob=-0.25)
    stream.finish(slot)


async def test_prompt_logprobs(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = prompted
    wanted = [
        None,
        {"1": {"logprob": -1.0, "rank": None, "decoded_token": "b"},
         "99": {"logprob": -0.5, "rank": 1, "decoded_token": "~"}},
        {"2": {"logprob": -2.0, "rank": None, "decoded_token": "cd"},
         "99": {"logprob": -0.5, "rank": 1, "decoded_token": "~"}},
    ]  # fmt: skip
    text = (await client.post(COMPLETIONS, json=completion(prompt_logprobs=1))).json()
    assert text["choices"][0]["prompt_logprobs"] == wanted
    whole = (await client.post(CHAT, json=chat(prompt_logprobs=1))).json()
    assert whole["prompt_logprobs"] == wanted
    assert fake.streams[-1].requests_seen[1].limits.prompt_logprobs == 1


async def test_echo(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = prompted
    body = completion(prompt=[[97, 98, 99, 100], [97, 98]], echo=True, n=2)
    whole = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    assert [c["text"] for c in whole] == ["abcdef", "abcdef", "abef", "abef"]
    stream = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    for k in range(4):
        choices = [c for event in stream for c in event["choices"] if c["index"] == k]
        assert "".join(c["text"] for c in choices) == whole[k]["text"]


async def test_echo_with_logprobs(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = prompted
    body = completion(prompt="abcd", echo=True, logprobs=1)
    shown = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
    assert shown["tokens"] == ["a", "b", "cd", "ef"]
    assert shown["token_logprobs"] == [None, -1.0, -2.0, -0.25]
    assert shown["text_offset"] == [0, 1, 2, 4]
    assert shown["top_logprobs"][0] is None and shown["top_logprobs"][1] == {"~": -0.5, "b": -1.0}


async def test_the_first_token_of_an_echo_is_its_own(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """A character that two tokens share is told by its bytes, and has one place in the text."""

    def cut(stream: Stream, slot: int) -> None:
        stream.start(slot, 4)
        stream.prompt_logprobs(slot, "h", b"\xc3", b"\xa9", "llo", first=0)
        stream.token(slot, "!", logprob=-0.25)
        stream.finish(slot)

    fake.script = cut
    body = completion(prompt="héllo", echo=True, logprobs=1)
    shown = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
    assert shown["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "llo", "!"]
    told = zip(shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True)
    assert all(top[token] == logprob for token, logprob, top in list(told)[1:])
    assert shown["text_offset"] == [0, 1, 1, 2, 5] and shown["token_logprobs"][0] is None


async def test_offsets_are_places_in_the_text(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """A token that the tokenizer has put before the prompt has no room in it; streams count on."""

    def begun(stream: Stream, slot: int) -> None:
        stream.start(slot, 5)
        stream.prompt_logprobs(slot, "<s>", b"\xc3", b"\xa9", b"\xf0", "x", first=0)
        stream.token(slot, "ab", logprob=-0.25)
        stream.token(slot, "é", logprob=-0.25)
        stream.token(slot, "c", logprob=-0.25)
        stream.finish(slot)

    fake.script = begun
    body = completion(prompt="é\ufffdx", echo=True, logprobs=1)
    choice = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
    assert choice["text"] == "é\ufffdxabéc"
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1, 2, 3, 5, 6]
    body = completion(logprobs=1, stream=True)
    stream = events((await client.post(COMPLETIONS, json=body)).text)
    rows = [c["logprobs"] for event in stream for c in event["choices"] if c["logprobs"]]
    assert [at for row in rows for at in row["text_offset"]] == [0, 2, 3]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_completion_begins_where_the_echo_ends(
    is_stream: bool, client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """The prompt's tokens say in four characters what the client wrote in five."""

    def composed(stream: Stream, slot: int) -> None:
        stream.start(slot, 2)
        stream.prompt_logprobs(slot, "caf", "é", first=0)
        stream.token(slot, "!", logprob=-0.25)
        stream.finish(slot)

    fake.script = composed
    body = completion(prompt="cafe\u0301", echo=True, logprobs=1, stream=is_stream)
    answer = await client.post(COMPLETIONS, json=body)
    told = events(answer.text) if is_stream else [answer.json()]
    rows = [c["logprobs"] for event in told for c in event["choices"] if c["logprobs"]]
    assert [at for row in rows for at in row["text_offset"]] == [0, 3, 5]


async def test_a_special_token_takes_no_room_in_the_text(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def special(stream: Stream, slot: int) -> None:
        stream.start(slot, 1)
        for text, is_hidden in (("ab", False), ("", True), ("c", False)):
            stream.token(slot, text)
            entry = logprob_entry(text or "<|header|>", -0.5)
            index = stream.num_tokens[slot] - 1
            row = TextLogprobs(slot=slot, index=index, entries=[entry], is_hidden=is_hidden)
            stream.say(TextBatch(logprobs=[row]))
        stream.finish(slot)

    fake.script = special
    body = completion(logprobs=0)
    shown = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
    assert shown["tokens"] == ["ab", "<|header|>", "c"] and shown["text_offset"] == [0, 2, 2]


async def test_stop_id_0_is_told(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    def stop(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "a")
        stream.finish(slot, stop_token_id=0)

    fake.script = stop
    body = completion(stop_token_ids=[0])
    assert (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["stop_reason"] == 0


async def test_a_prompt_is_as_cached_as_its_first_choice_found_it(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """What the others find is what the first has computed."""
    found = [3, 4, 0, 2]

    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "x")
        stream.finish(slot, num_cached_tokens=found.pop(0))

    fake.script = run
    body = completion(prompt=["a", "b"], n=2)
    usage = (await client.post("/v1/completions", json=body)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 4)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_usage_is_told_when_a_stream_ends_badly(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def break_down(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "a", 1, 2)
        stream.fail(slot, 6, kind="Internal", message="broken")

    fake.script = break_down
    body = chat(stream=True, stream_options={"include_usage": True})
    text = (await client.post(CHAT, json=body)).text
    *_, usage, error = [json.loads(f.rpartition("data: ")[2]) for f in text.split("\n\n")[:-1]]
    assert error["error"]["code"] == "internal"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 2


SPACING = '{"whitespace_flexible":false,"item_separator":", ","key_separator":": "}'
FORMS: list[tuple[dict[str, Any], int, str]] = [
    ({"response_format": {"type": "json_object"}}, Grammar.JSON_SCHEMA, "{}"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "array"}, "strict": True}}},
        Grammar.JSON_SCHEMA,
        '{"type":"array"}',
    ),
    (
        {"response_format": {"type": "json_object", "schema": {"properties": {"a": {}}}}},
        Grammar.JSON_SCHEMA,
        '{"properties":{"a":{}},"additionalProperties":false}',
    ),
    ({"structured_outputs": {"json": '{"type": "null"}'}}, Grammar.JSON_SCHEMA, '{"type":"null"}'),
    ({"structured_outputs": {"json_object": True}}, Grammar.JSON_SCHEMA, "{}"),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        Grammar.JSON_SCHEMA,
        f'{{"x-guidance":{SPACING},"type":"object"}}',
    ),
    (
        {"structured_outputs": {"json": {"properties": {"a": {}}}, "disable_fallback": True,
                                "disable_additional_properties": True}},
        Grammar.JSON_SCHEMA,
        '{"properties":{"a":{}},"additionalProperties":false}',
    ),
    ({"structured_outputs": {"regex": "a+"}}, Grammar.REGEX, "a+"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar.CHOICE, '["a","b"]'),
    ({"structured_outputs": {"grammar": "start: /a/"}}, Grammar.LARK, "start: /a/"),
    ({"response_format": {"type": "text"}}, Grammar.NONE, ""),
]  # fmt: skip


@pytest.mark.parametrize("more, kind, text", FORMS)
async def test_forms_become_grammars(
    client: httpx.AsyncClient, fake: FakeTokenizer, more: dict[str, Any], kind: int, text: str
) -> None:
    for path, body in ((CHAT, chat(**more)), (COMPLETIONS, completion(**more))):
        assert (await client.post(path, json=body)).status_code == 200
        slot = max(fake.streams[-1].requests_seen)
        grammar = fake.streams[-1].requests_seen[slot].text.grammar
        assert (grammar.kind, grammar.text) == (kind, text)


async def test_the_sampler_is_told_everything(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    body = chat(
        temperature=0.5, top_k=-1, typical_p=0.9, top_n_sigma=1, samplers=[], bad_words=["x y"],
        dynamic_temperature={"range": 0.25}, xtc_probability=0.5, dry_multiplier=0.8,
        dry_penalty_last_n=64, allowed_token_ids=[5, 6], n_keep=4, rotate_kv=True, seed=7,
    )  # fmt: skip
    assert (await client.post(CHAT, json=body)).status_code == 200
    request = fake.streams[-1].requests_seen[1]
    told = request.sampling
    assert (told.temperature, told.typical_p, told.top_n_sigma, told.seed) == (0.5, 0.9, 1, 7)
    assert (told.dynamic_temperature.range, told.dynamic_temperature.exponent) == (0.25, 1)
    assert (told.xtc.probability, told.xtc.threshold) == (0.5, 0.1)
    assert (told.dry.base, told.dry.allowed_length, told.dry.last_n) == (1.75, 2, 64)
    assert told.allowed_token_ids == b"\5\0\0\0\6\0\0\0"
    assert list(request.text.bad_words) == ["x y"]
    assert list(request.text.dry_breakers) == ["\n", ":", '"', "*"]
    assert request.limits.n_keep == 4 and request.limits.rotate_kv
    chain = {"samplers": ["temperature", "top_k"], "top_k": 3}
    assert (await client.post(CHAT, json=chat(**chain))).status_code == 200
    assert list(fake.streams[-1].requests_seen[2].sampling.samplers) == chain["samplers"]


async def test_whole_numbers_may_be_written_as_floats_and_refusals_come_back(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    history = [{"role": "user", "content": "a"}, said, {"role": "user", "content": "b"}]
    body = {**chat(max_tokens=5.0, seed=1.0, top_k=40.0), "messages": history}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    request = fake.streams[-1].requests_seen[max(fake.streams[-1].requests_seen)]
    assert request.limits.max_tokens == 5
    assert json.loads(request.chat.messages_json)[1] == {"role": "assistant", "content": "no"}
    reply = await client.post("/v1/chat/completions", json=chat(top_k=-2))
    assert "must be -1 or between 0 and" in reply.json()["error"]["message"]
    reply = await client.post("/v1/chat/completions", json=chat(max_tokens=5.5))
    assert reply.json()["error"]["param"] == "max_tokens"


async def test_an_error_of_one_prompt_of_several_says_which(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def second_is_empty(stream: Stream, slot: int) -> None:
        if stream.requests[slot].prompt:
            return echo()(stream, slot)
        why = {"kind": "InvalidRequest", "message": "the prompt is empty", "param": "prompt"}
        stream.fail(slot, IGNORED, **why)

    fake.script = second_is_empty
    for prompt, param in ((["a", ""], "prompt[1]"), ([""], "prompt"), ("", "prompt")):
        error = (await client.post(COMPLETIONS, json=completion(prompt=prompt))).json()["error"]
        assert error["param"] == param and error["message"].endswith("the prompt is empty")
        assert error["message"].startswith("prompt[1]: ") == (param == "prompt[1]")
    body = {"model": "fake-model", "input": ["a", ""]}
    error = (await client.post("/v1/embeddings", json=body)).json()["error"]
    assert (error["param"], error["message"][:10]) == ("input[1]", "input[1]: ")
