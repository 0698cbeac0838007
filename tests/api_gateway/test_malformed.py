"""Bad bodies: each is refused with a 4xx that names the field, and the next request works."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from api_gateway.__main__ import Gateway
from api_gateway.app import routes
from protos.limits import MAX_MESSAGES
from tests.api_gateway.conftest import in_process, running
from tests.api_gateway.requests import chat, completion, embedding, tool
from tests.support.fake_tokenizer import MODEL, FakeTokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"
MESSAGES_URL = "/v1/messages"
M = f'"model":"{MODEL}"'.encode()
MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


def raw(*fields: bytes) -> bytes:
    return b"{" + b",".join((M, *fields)) + b"}"


def messages(*given: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(given)}


def content(*parts: Any) -> dict[str, Any]:
    return messages({"role": "user", "content": list(parts)})


TEXT_PART = {"type": "text", "text": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "http://example.com/x.png"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}

CASES: list[tuple[str, Any, str | None]] = [
    # not JSON, or not an object
    (CHAT, b"", None),
    (CHAT, b"{", None),
    (CHAT, b"hello", None),
    (CHAT, b"[]", None),
    (CHAT, b"null", None),
    (CHAT, b'"text"', None),
    (CHAT, b"\xff\xfe{}", None),
    (CHAT, raw(MESSAGES) + b"x", None),
    (CHAT, raw(MESSAGES, b'"user":' + b"[" * 100_000 + b"]" * 100_000), None),
    (CHAT, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, None),
    (CHAT, raw(MESSAGES, b'"temperature":NaN'), "temperature"),
    (CHAT, raw(MESSAGES, b'"top_p":-Infinity'), "top_p"),
    (CHAT, raw(MESSAGES, b'"temperature":1e999'), "temperature"),
    (CHAT, raw(b'"messages":[{"role":"user","content":"\\ud800"}]'), "messages[0].content"),
    (CHAT, raw(b'"messages":[{"role":"user","content":"\xc3"}]'), "messages[0].content"),
    (COMPLETIONS, raw(b'"prompt":"\xed\xa0\x80"'), "prompt"),
    (COMPLETIONS, raw(b'"prompt":"x","\\udc00":1'), "?"),
    # fields that are missing, unknown or of the wrong type
    (CHAT, {"model": 1, "messages": [{"role": "user", "content": "hi"}]}, "model"),
    (CHAT, {"model": MODEL}, "messages"),
    (COMPLETIONS, {"model": MODEL}, "prompt"),
    (CHAT, chat(temprature=1), "temprature"),
    (CHAT, chat(prompt="x"), "prompt"),
    (COMPLETIONS, completion(messages=[]), "messages"),
    (CHAT, chat(temperature="hot"), "temperature"),
    (CHAT, chat(temperature=True), "temperature"),
    (CHAT, chat(max_tokens="5"), "max_tokens"),
    (CHAT, chat(max_tokens=5.5), "max_tokens"),
    (CHAT, chat(stream="yes"), "stream"),
    (CHAT, chat(stop=5), "stop"),
    (CHAT, chat(stop=["a", 1]), "stop[1]"),
    (CHAT, chat(seed=1.5), "seed"),
    (CHAT, chat(n=[]), "n"),
    (CHAT, chat(logprobs=3), "logprobs"),
    (COMPLETIONS, completion(logprobs=True), "logprobs"),
    (CHAT, chat(stream=True, stream_options={"usage": True}), "stream_options.usage"),
    (CHAT, chat(chat_template_kwargs={"x": [1]}), "chat_template_kwargs"),
    # bounds
    (CHAT, chat(temperature=-1), "temperature"),
    (CHAT, chat(temperature=2.5), "temperature"),
    (CHAT, chat(thinking_token_budget=-2), "thinking_token_budget"),
    (CHAT, chat(thinking_token_budget=5, n_keep=4), "thinking_token_budget"),
    (CHAT, chat(thinking_budget=512), "thinking_budget"),
    (CHAT, chat(separate_reasoning=False), "separate_reasoning"),
    (CHAT, chat(safe_prompt=True), "safe_prompt"),
    (CHAT, chat(do_sample=True), "do_sample"),
    (CHAT, chat(response_format={"type": "text", "schema": {}}), "response_format.schema"),
    (CHAT, chat(top_p=1.1), "top_p"),
    (CHAT, chat(top_k=-2), "top_k"),
    (CHAT, chat(top_k=2**40), "top_k"),
    (CHAT, chat(min_p=-0.1), "min_p"),
    (CHAT, chat(presence_penalty=3), "presence_penalty"),
    (CHAT, chat(frequency_penalty=-3), "frequency_penalty"),
    (CHAT, chat(repetition_penalty=0), "repetition_penalty"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (CHAT, chat(max_completion_tokens=-5), "max_completion_tokens"),
    (CHAT, chat(max_tokens=5, max_completion_tokens=6), "max_completion_tokens"),
    (CHAT, chat(max_tokens=2, min_tokens=3), "min_tokens"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(n=129), "n"),
    (CHAT, chat(n=10**6), "n"),
    (CHAT, raw(MESSAGES, b'"seed":' + b"9" * 400), "seed"),
    (CHAT, raw(MESSAGES, b'"seed":' + b"9" * 9000), "seed"),
    (CHAT, chat(priority=5000), "priority"),
    (CHAT, chat(timeout_ms=0), "timeout_ms"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (CHAT, chat(top_logprobs=2), "top_logprobs"),
    (COMPLETIONS, completion(logprobs=21), "logprobs"),
    (CHAT, chat(stop=""), "stop"),
    (CHAT, chat(stop=["a", ""]), "stop[1]"),
    (CHAT, chat(stop=["x"] * 17), "stop"),
    (CHAT, chat(stop="x" * 257), "stop"),
    (CHAT, chat(stop_token_ids=[1] * 257), "stop_token_ids"),
    (CHAT, chat(stop_token_ids=[-1]), "stop_token_ids[0]"),
    (CHAT, chat(logit_bias={"one": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"1": 101}), "logit_bias"),
    (CHAT, chat(logit_bias={str(k): 1 for k in range(1025)}), "logit_bias"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
    (CHAT, chat(cache_salt="no spaces"), "cache_salt"),
    (CHAT, chat(request_id="no spaces"), "request_id"),
    (CHAT, chat(request_id="x" * 129), "request_id"),
    (CHAT, chat(request_id=""), "request_id"),
    # messages
    (CHAT, messages(), "messages"),
    (CHAT, chat() | {"messages": "hi"}, "messages"),
    (CHAT, messages("hi"), "messages[0]"),
    (CHAT, messages({"content": "hi"}), "messages[0].role"),
    (CHAT, messages({"role": "king", "content": "hi"}), "messages[0].role"),
    (CHAT, messages({"role": "user"}), "messages[0].content"),
    (CHAT, messages({"role": "user", "content": None}), "messages[0].content"),
    (CHAT, messages({"role": "user", "content": 5}), "messages[0].content"),
    (CHAT, messages({"role": "user", "content": "x", "mood": 1}), "messages[0].mood"),
    (CHAT, messages({"role": "user", "content": "x", "tool_calls": [
        {"function": {"name": "f", "arguments": "{}"}}]}), "messages[0].tool_calls"),
    (CHAT, content(TEXT_PART, IMAGE), "messages[0].content[1].image_url"),
    (CHAT, content(AUDIO), "messages[0].content[0].input_audio"),
    (CHAT, content({"type": "file", "file": {}}), "messages[0].content[0].file"),
    (CHAT, content({"text": "x"}), "messages[0].content[0].type"),
    (CHAT, content({"type": "text"}), "messages[0].content[0].text"),
    (CHAT, content({"type": "text", "text": "x", "y": 1}), "messages[0].content[0].y"),
    (CHAT, content("x"), "messages[0].content[0]"),
    (CHAT, chat(continue_final_message=True, add_generation_prompt=True), "continue_final_message"),
    (CHAT, chat(chat_template_kwargs={"messages": 1}), "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs={"chat_template": "x"}), "chat_template_kwargs"),
    # prompts
    (COMPLETIONS, completion(prompt=[]), "prompt"),
    (COMPLETIONS, completion(prompt=[[]]), "prompt[0]"),
    (COMPLETIONS, completion(prompt=["a", 1]), "prompt"),
    (COMPLETIONS, completion(prompt=[[1], [-1]]), "prompt[1][0]"),
    (COMPLETIONS, completion(prompt=[2**32]), "prompt[0]"),
    (COMPLETIONS, completion(prompt=[True]), "prompt[0]"),
    (COMPLETIONS, completion(prompt=None), "prompt"),
    (COMPLETIONS, completion(prompt={"text": "x"}), "prompt"),
    (COMPLETIONS, completion(prompt=["x"] * 100, n=8), "prompt"),
    # the sampler's chain
    (CHAT, chat(typical_p=1.5), "typical_p"),
    (CHAT, chat(top_n_sigma=-0.5), "top_n_sigma"),
    (CHAT, chat(dynamic_temperature=0.5), "dynamic_temperature"),
    (CHAT, chat(dynamic_temperature={"range": 9}), "dynamic_temperature.range"),
    (CHAT, chat(dynamic_temperature={"range": 1, "exponent": -1}), "dynamic_temperature.exponent"),
    (CHAT, chat(dynamic_temperature={"exponent": 1}), "dynamic_temperature.range"),
    (CHAT, chat(xtc_probability=2), "xtc_probability"),
    (CHAT, chat(dry_multiplier=-1), "dry_multiplier"),
    (CHAT, chat(dry_allowed_length=0), "dry_allowed_length"),
    (CHAT, chat(dry_penalty_last_n=-2), "dry_penalty_last_n"),
    (CHAT, chat(dry_sequence_breakers=[""]), "dry_sequence_breakers[0]"),
    (CHAT, chat(bad_words=["x"] * 257), "bad_words"),
    (CHAT, chat(bad_words=["x", ""]), "bad_words[1]"),
    (CHAT, chat(allowed_token_ids=[]), "allowed_token_ids"),
    (CHAT, chat(allowed_token_ids=[1, -1]), "allowed_token_ids[1]"),
    (CHAT, chat(samplers=["top_k", "magic"]), "samplers"),
    (CHAT, chat(samplers=["top_k", "top_k"]), "samplers"),
    (CHAT, chat(samplers=["top_k"], top_p=0.5), "samplers"),
    (CHAT, chat(n_keep=-1), "n_keep"),
    (CHAT, chat(rotate_kv=True), "rotate_kv"),
    (CHAT, chat(return_progress=True), "return_progress"),
    (CHAT, chat(prompt_logprobs=21), "prompt_logprobs"),
    (CHAT, chat(prompt_logprobs=1, stream=True), "prompt_logprobs"),
    (COMPLETIONS, completion(max_tokens=0), "max_tokens"),
    (COMPLETIONS, completion(max_tokens=0, echo=True, min_tokens=1), "min_tokens"),
    # forms
    (CHAT, chat(response_format={"type": "yaml"}), "response_format.type"),
    (CHAT, chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "a b"}}),
     "response_format.json_schema.name"),
    (CHAT, chat(response_format={"type": "json_object", "json_schema": {"name": "a"}}),
     "response_format.json_schema"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {
        "name": "a", "schema": json.loads('{"a":' * 40 + "1" + "}" * 40)}}),
     "response_format.json_schema.schema"),
    (CHAT, chat(structured_outputs={}), "structured_outputs"),
    (CHAT, chat(structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs"),
    (CHAT, chat(structured_outputs={"json": "{"}), "structured_outputs.json"),
    (CHAT, chat(structured_outputs={"json": "[]"}), "structured_outputs.json"),
    (CHAT, chat(structured_outputs={"json": '{"not":' * 900 + "{}" + "}" * 900}),
     "structured_outputs.json"),
    (CHAT, chat(structured_outputs={"choice": []}), "structured_outputs.choice"),
    (CHAT, chat(structured_outputs={"regex": "x" * 65_537}), "structured_outputs.regex"),
    (CHAT, chat(structured_outputs={"structural_tag": "x"}), "structured_outputs.structural_tag"),
    (CHAT, chat(structured_outputs={"regex": "a"}, response_format={"type": "json_object"}),
     "structured_outputs"),
    # tools
    (CHAT, chat(tools=[{"type": "code", "function": {"name": "f"}}]), "tools[0].type"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools[0].function"),
    (CHAT, chat(tools=[tool("a b")]), "tools[0].function.name"),
    (CHAT, chat(tools=[tool("f"), tool("f")]), "tools[1].function.name"),
    (CHAT, chat(tools=[tool("f" + str(k)) for k in range(129)]), "tools"),
    (CHAT, chat(tools=[tool("f", parameters=[])]), "tools[0].function.parameters"),
    (CHAT, chat(tools=[tool("f", parameters={"type": "string"})]),
     "tools[0].function.parameters.type"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(tools=[tool("f")], tool_choice="maybe"), "tool_choice"),
    (CHAT, chat(tools=[tool("f")], tool_choice={"type": "function", "function": {"name": "g"}}),
     "tool_choice.function.name"),
    (CHAT, chat(tools=[tool("f")], structured_outputs={"regex": "a"}), "structured_outputs"),
    (CHAT, chat(structured_outputs={"regex": "a", "disable_any_whitespace": True}),
     "structured_outputs.disable_any_whitespace"),
    (CHAT, chat(cache_salt="a" * 1025), "cache_salt"),
    (CHAT, messages({"role": "tool", "content": "4"}), "messages[0].tool_call_id"),
    (CHAT, messages({"role": "tool", "tool_call_id": "a"}), "messages[0].content"),
    (CHAT, messages({"role": "user", "content": "x", "tool_call_id": "a"}),
     "messages[0].tool_call_id"),
    (CHAT, messages({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}),
     "messages[0].tool_calls[0].function.arguments"),
    (CHAT, messages(*[{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)), "messages"),
    (CHAT, chat(reasoning_effort="much"), "reasoning_effort"),
    # embeddings
    (EMBEDDINGS, embedding(input=[]), "input"),
    (EMBEDDINGS, embedding(input=["a"] * 2049), "input"),
    (EMBEDDINGS, embedding(input=[[]]), "input[0]"),
    (EMBEDDINGS, embedding(input=5), "input"),
    (EMBEDDINGS, embedding(dimensions=0), "dimensions"),
    (EMBEDDINGS, embedding(encoding_format="hex"), "encoding_format"),
    (EMBEDDINGS, embedding(pooling="max"), "pooling"),
    (EMBEDDINGS, embedding(temperature=1), "temperature"),
    (EMBEDDINGS, embedding(truncate_prompt_tokens=5), "truncate_prompt_tokens"),
    # text work
    ("/tokenize", {"model": MODEL}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
    ("/tokenize", {"prompt": "unspeakable"}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/apply-template", {"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
    ("/v1/requests/explain", chat(temperature=9), "temperature"),
    ("/v1/chat/completions/input_tokens", chat(n=0), "n"),
    ("/v1/completions/input_tokens", completion(prompt=[]), "prompt"),
    # known, not served
    (CHAT, chat(functions=[{"name": "f"}]), "functions"),
    (CHAT, chat(modalities=["text", "audio"]), "modalities"),
    (CHAT, chat(session_id="s"), "session_id"),
    (CHAT, chat(kv_transfer_params={}), "kv_transfer_params"),
    (CHAT, chat(chat_template="{{ x }}"), "chat_template"),
    (CHAT, chat(store=True), "store"),
    (CHAT, chat(metadata={"k": 1}), "metadata"),
    (CHAT, chat(metadata={"": "v"}), "metadata"),
    (CHAT, chat(prompt_cache_key="k" * 65), "prompt_cache_key"),
    (RESPONSES, {"model": MODEL, "input": "hi", "safety_identifier": "s" * 65},
     "safety_identifier"),
    (CHAT, chat(metadata={"k": "v" * 513}), "metadata"),
    (CHAT, chat(metadata={f"k{i}": "v" for i in range(17)}), "metadata"),
    (RESPONSES, {"model": MODEL, "input": "hi", "metadata": {"k" * 65: "v"}}, "metadata"),
    (CHAT, chat(echo=True), "echo"),
    (CHAT, chat(truncate_prompt_tokens=4), "truncate_prompt_tokens"),
    (EMBEDDINGS, embedding(truncate_prompt_tokens=4), "truncate_prompt_tokens"),
    (COMPLETIONS, completion(num_beams=4), "num_beams"),
    (CHAT, chat(mine=0), "mine"),
    (COMPLETIONS, completion(best_of=2), "best_of"),
    (COMPLETIONS, completion(best_of=True), "best_of"),
    (CHAT, chat(best_of=2), "best_of"),
    (COMPLETIONS, completion(regex="a"), "regex"),
    (COMPLETIONS, completion(suffix="x"), "suffix"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wrap", "why"),
    [
        (gzip.compress, "it is compressed (gzip)"),
        (lambda body: codecs.BOM_UTF8 + body, "it begins with a byte order mark"),
    ],
    ids=["gzip", "mark"],
)
async def test_what_stands_around_a_body_is_told(
    client: httpx.AsyncClient, wrap: Callable[[bytes], bytes], why: str
) -> None:
    reply = await client.post(CHAT, content=wrap(json.dumps(chat()).encode()))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "invalid_json") and why in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        (raw(b'"max_tokens":1' + b"0" * 5000), "max_tokens", "a number that is not finite"),
        (raw(b'"temperature":NaN'), "temperature", "a number that is not finite"),
        (raw(b'"stop":["\\ud800"]'), "stop[0]", "half of a surrogate pair"),
        (raw(b'"user":"\xff"'), "user", "text that is not UTF-8"),
    ],
    ids=["digits", "nan", "surrogate", "bytes"],
)
async def test_a_value_that_no_json_has_is_named(
    client: httpx.AsyncClient, body: bytes, param: str, why: str
) -> None:
    error = (await client.post(CHAT, content=body)).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: the body is not valid JSON: ")
    assert why in error["message"]


@pytest.mark.parametrize("number", range(len(CASES)))
async def test_a_bad_body_is_named_and_harms_nobody(
    client: httpx.AsyncClient, fake: FakeTokenizer, number: int
) -> None:
    path, body, param = CASES[number]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await client.post(path, content=content)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error" and error["message"] and error["code"]
    assert fake.arrivals.empty()
    path = path if path in (CHAT, COMPLETIONS) else COMPLETIONS
    assert (await client.post(path, json=good(path))).status_code == 200


def good(path: str) -> dict[str, Any]:
    kinds = {CHAT: chat(), EMBEDDINGS: embedding(), RESPONSES: {"model": MODEL, "input": "hi"}}
    kinds |= {MESSAGES_URL: chat(max_tokens=5), "/detokenize": {"tokens": []}}
    return kinds.get(path, completion())


DEEP = [
    kind(depth)
    for depth in (300, 900, 100_000)
    for kind in (lambda d: b"[" * d + b"]" * d, lambda d: b'{"a":' * d + b"1" + b"}" * d)
]
"""Levels that a reader takes and a writer does not, that a reader just takes, and far too many."""
SPOTS = ("messages", "prompt", "input", "tokens", "tools", "tool_choice", "response_format",
         "structured_outputs", "chat_template_kwargs", "metadata", "unknown")  # fmt: skip


POSTS = {route.path for route in routes(MagicMock()) if route.method == "POST"}
READ_NO_BODY = {"/v1/cache/reset", "/v1/requests/{id}/cancel"}


@pytest.mark.parametrize("path", sorted(POSTS - READ_NO_BODY))
async def test_a_deep_body_is_refused_by_every_route_that_reads_one(
    client: httpx.AsyncClient, fake: FakeTokenizer, path: str
) -> None:
    whole = [b'"messages":[{"role":"user","content":%s}]' % deep for deep in DEEP]
    parameters = [
        MESSAGES + b',"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]' % deep
        for deep in DEEP
    ]
    spots = [b'"%s":%s' % (spot.encode(), deep) for spot in SPOTS for deep in DEEP]
    for field in (*whole, *parameters, *spots):
        reply = await client.post(path, content=raw(field))
        assert reply.status_code == 400, (field[:60], reply.text)
        assert reply.json()["error"]["type"] == "invalid_request_error"
    for deep in DEEP:
        assert (await client.post(path, content=deep)).status_code == 400
    assert fake.arrivals.empty()


NEUTRAL: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"tools": [], "tool_choice": "none", "functions": None, "parallel_tool_calls": True}),
    (CHAT, {"tool_choice": "auto", "separate_reasoning": True, "reasoning_format": "auto"}),
    (CHAT, {"safe_prompt": False}),  # Langchain's clients of Mistral always say so
    (
        CHAT,
        {
            "cache_prompt": True,
            "id_slot": -1,
            "timings_per_token": False,
            "min_keep": 0,
            "mirostat": 0,
            "n_probs": 0,
            "return_tokens": False,
            "t_max_predict_ms": -1,
        },
    ),
    (
        COMPLETIONS,
        {
            "watermark": False,
            "return_full_text": False,
            "lora": [],
            "grammar": "",
            "return_hidden_states": False,
            "decoder_input_details": False,
        },
    ),
    (CHAT, {"response_format": {"type": "text"}, "modalities": ["text"], "store": False}),
    (CHAT, {"temperature": None, "max_tokens": None, "stop": None, "seed": None, "n": None}),
    (CHAT, {"top_k": -1, "top_n_sigma": -1.0, "samplers": ["top_k"]}),
    (CHAT, {"top_k": -1, "seed": -1, "user": "u", "priority": -3, "cache_salt": "a-b_1+/=="}),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 5, "stop": [], "logit_bias": {"5": -100}}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False, "x": 1.5}, "service_tier": "auto"}),
    (COMPLETIONS, {"echo": False, "best_of": 1, "suffix": None, "add_special_tokens": True}),
    (CHAT, {"metadata": {"k": "v" * 512, "l": ""}, "prompt_cache_key": ""}),
    (
        CHAT,
        {
            "structured_outputs": {
                "regex": "a",
                "whitespace_pattern": None,
                "disable_any_whitespace": False,
                "structural_tag": None,
            }
        },
    ),
    (COMPLETIONS, {"metadata": {}, "prompt_cache_key": "k" * 64, "safety_identifier": "s"}),
    (
        CHAT,
        {"stream": True, "stream_options": {"include_usage": None, "continuous_usage_stats": None}},
    ),
    (CHAT, {"best_of": 1, "return_tokens_as_token_ids": False, "mm_processor_kwargs": None}),
    (CHAT, {"guided_decoding_backend": None, "guided_whitespace_pattern": None, "vllm_xargs": {}}),
    (COMPLETIONS, {"regex": None, "ebnf": None, "lora_path": None, "custom_params": None}),
    (COMPLETIONS, {"no_stop_trim": False, "return_tokens_as_token_ids": None}),
    (COMPLETIONS, {"prompt": [1, 2, 3], "logprobs": 0, "max_tokens": 1, "top_p": 1}),
    (COMPLETIONS, {"num_beams": 1, "thinking_token_budget": None}),
    (CHAT, {"prompt_cache_retention": "in_memory", "thinking": None}),
    (CHAT, {"prompt_cache_retention": "24h"}),
    (CHAT, {"prompt_cache_options": {"mode": "implicit"}}),
    (RESPONSES, {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}),
    (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "provider_specific_fields": None,
                    "content": [
                        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "b", "annotations": None},
                        {
                            "type": "text",
                            "text": "c",
                            "prompt_cache_breakpoint": {"mode": "explicit"},
                        },
                    ],
                    "copilot_cache_control": {"type": "ephemeral"},
                },
                {"role": "system", "content": "s", "cache_control": {"type": "ephemeral"}},
            ],
            "tools": [{**tool("f"), "mine": None}],
        },
    ),
    (RESPONSES, {"stop": None, "mine": None}),
]


@pytest.mark.parametrize("path, more", NEUTRAL)
async def test_fields_that_ask_for_nothing_are_accepted(
    client: httpx.AsyncClient, path: str, more: dict[str, Any]
) -> None:
    reply = await client.post(path, json=good(path) | more)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"max_tokens": 5.0, "temperature": 1.0, "best_of": 1.0, "id_slot": -1.0}),
        (CHAT, {"stop_token_ids": [7.0], "allowed_token_ids": [1.0, 2e1], "n": 2.0}),
        (COMPLETIONS, {"prompt": [1.0, 2, 3.0], "length_penalty": 1.0}),
        (COMPLETIONS, {"prompt": [[1.0], [2]], "mirostat": 0.0}),
        (MESSAGES_URL, {"thinking": {"type": "enabled", "budget_tokens": 1e3}, "max_tokens": 9.0}),
        ("/detokenize", {"tokens": [104.0]}),
    ],
)
async def test_a_whole_number_may_be_written_with_a_point(
    client: httpx.AsyncClient, path: str, more: dict[str, Any]
) -> None:
    """Some languages know one kind of number."""
    reply = await client.post(path, json=good(path) | more)
    assert reply.status_code == 200, reply.text


async def test_numbers_for_a_template_stay_what_they_are(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    kwargs = {"chat_template_kwargs": {"x": 1.0, "y": 1}, "max_tokens": 5.0}
    assert (await client.post(CHAT, json=chat(**kwargs))).status_code == 200
    (request,) = fake.streams[-1].requests_seen.values()
    assert request.chat.template_kwargs_json == b'{"x":1.0,"y":1}'


async def test_an_answer_may_be_repeated_in_its_own_part(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """As OpenAI's agents for Node send back what they have got; nobody else may say it there."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "refusal": None, "reasoning_content": "t", "reasoning": "t"}
    part = {**answer, "annotations": [], "tool_calls": [call], "type": "text", "text": "a"}
    said = {"role": "assistant", "content": [part], "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    body = chat(messages=[{"role": "user", "content": "q"}, said, result], tools=[tool("f")])
    reply = await client.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    (seen,) = fake.streams[-1].requests_seen.values()
    _, shown, _ = json.loads(seen.chat.messages_json)
    assert (shown["content"], len(shown["tool_calls"])) == ("a", 1)
    for role, field in (("user", "reasoning"), ("assistant", "content"), ("assistant", "mine")):
        wrong = messages({"role": role, "content": [TEXT_PART | {field: "x"}]})
        error = (await client.post(CHAT, json=wrong)).json()["error"]
        assert error["param"] == f"messages[0].content[0].{field}", error


@pytest.mark.parametrize(
    ("path", "name", "ours"),
    [
        (CHAT, "max_new_tokens", "max_tokens"),
        (CHAT, "repeat_penalty", "repetition_penalty"),
        (CHAT, "enable_thinking", "chat_template_kwargs"),
        (CHAT, "reasoning", "reasoning_effort"),
        (CHAT, "min_new_tokens", "min_tokens"),
        (CHAT, "random_seed", "seed"),
        (CHAT, "content", None),
        (TOKENIZE, "content", "prompt"),
        (TOKENIZE, "add_special", "add_special_tokens"),
        (TOKENIZE, "with_pieces", "return_token_strs"),
        (COMPLETIONS, "max_completion_tokens", "max_tokens"),
        (RESPONSES, "max_tokens", "max_output_tokens"),
        (EMBEDDINGS, "max_tokens", None),
    ],
)
async def test_a_field_of_another_name_is_told_ours(
    client: httpx.AsyncClient, path: str, name: str, ours: str | None
) -> None:
    error = (await client.post(path, json=good(path) | {name: 5})).json()["error"]
    assert (error["param"], error["code"]) == (name, "unknown_field")
    hint = f": here it is {ours}" if ours else ""
    assert error["message"] == f"unknown field {name!r}{hint}"


async def test_bodies_over_the_limit_are_413(client: httpx.AsyncClient) -> None:
    big = json.dumps(completion(prompt="x" * 2**22)).encode()

    async def pieces():  # type: ignore[no-untyped-def]
        for at in range(0, len(big), 2**20):
            yield big[at : at + 2**20]

    for content in (big, pieces()):
        reply = await client.post(COMPLETIONS, content=content)
        assert reply.status_code == 413, reply.text
        assert reply.json()["error"]["type"] == "invalid_request_error"
    assert (await client.post(COMPLETIONS, json=completion())).status_code == 200


async def test_the_lenient_setting_ignores_unknown_fields_only(fake: FakeTokenizer) -> None:
    async with running(fake.address, lenient=True) as gateway, in_process(gateway) as http:
        assert (await http.post(CHAT, json=chat(temprature=1))).status_code == 200
        assert (await http.post(CHAT, json=chat(temperature=9))).status_code == 400
        assert (await http.post(CHAT, json=chat(session_id="s"))).status_code == 400
        part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
        inner = messages({"role": "user", "content": [part], "mine": {}})
        inner |= {"tools": [{**tool("f"), "mine": 1}], "response_format": {"type": "text", "a": 1}}
        assert (await http.post(CHAT, json=inner)).status_code == 200
        call = {"type": "function", "name": "f", "mine": 1}
        tools = [call, {"type": "namespace", "name": "n", "tools": [call], "mine": 1}]
        body = good(RESPONSES) | {"tools": tools}
        assert (await http.post(RESPONSES, json=body)).status_code == 200
        for wrong in (
            messages({"role": "user", "content": [part | {"text": 5}]}),
            messages({"role": "user", "content": "a", "audio": {}}),
        ):
            assert (await http.post(CHAT, json=wrong)).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param", "code", "told"),
    [
        (CHAT, messages({"role": "User", "content": "a"}), "messages[0].role", "invalid_value",
         "'User' is none of 'assistant', 'developer', 'system', 'tool', 'user'"),
        (CHAT, chat(tools=[tool("f")], tool_choice={"type": "allowed_tools", "function": {}}),
         "tool_choice.type", "invalid_value", "'allowed_tools' is none of 'function'"),
        (CHAT, chat(stream=True, stream_options={"include_obfuscation": True}),
         "stream_options.include_obfuscation", "unsupported_parameter", "is not supported"),
        (CHAT, messages({"role": "user", "content": "a", "audio": {}}), "messages[0].audio",
         "unsupported_parameter", "is not supported"),
        (RESPONSES, {"model": MODEL, "input": "a", "text": {"verbosity": "low"}},
         "text.verbosity", "invalid_value", "'low' is none of 'medium'"),
        (RESPONSES, {"model": MODEL, "input": "a", "tools": [{"type": "custom", "name": "f"}]},
         "tools[0].type", "invalid_value",
         "'custom' is none of 'function', 'namespace', 'web_search', 'web_search_preview'"),
        (RESPONSES, {"model": MODEL, "input": "a", "include": ["x"]}, "include[0]",
         "invalid_value", "'x' is none of"),
        (CHAT, chat(temperature="hot"), "temperature", "invalid_type", "Expected `float | null`"),
    ],
)  # fmt: skip
async def test_a_wrong_word_is_told_the_right_ones(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str, code: str, told: str
) -> None:
    error = (await client.post(path, json=body)).json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"].startswith(param) and told in error["message"]


async def test_a_failure_of_ours_is_a_500_that_says_nothing_of_our_insides(
    gateway: Gateway, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(gateway.clients, "model", broken)
    reply = await client.post(CHAT, json=chat())
    assert reply.status_code == 500 and "secret" not in reply.text
    assert reply.json()["error"]["code"] == "internal"
