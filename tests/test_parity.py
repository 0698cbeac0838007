"""One corpus through every face: offline, completions, chat, whole and streamed, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from millrace import LLM, CompletionOutput, RequestOutput, SamplingParams
from millrace.project import DEMO_MODEL
from tests.support.online import Online, events
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.timeout(90)
TEXT = "Der Fluss ist"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is 7 odd?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ORDER = ["temperature", "top_p", "penalties", "top_k", "logit_bias"]
CORPUS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"seed": 5},
    "choices": {"n": 3, "top_p": 0.9},
    "penalties": {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "cut": {"top_k": 20, "min_p": 0.01, "typical_p": 0.95, "top_n_sigma": 3},
    "order": {"samplers": ORDER, "top_p": 0.8, "top_k": 9, "frequency_penalty": 1},
    "heat": {"dynamic_temperature": {"range": 0.5}, "temperature": 1.2},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "temperature": 0},
    "bias": {"logit_bias": {"7": 3, "9": -100}},
    "words": {"bad_words": ["the", "is", "e"]},
    "ids": {"allowed_token_ids": list(range(40, 120))},
    "stop": {"stop": ["s", "n"], "temperature": 0},
    "stop kept": {"stop": ["s", "n"], "include_stop_str_in_output": True},
    "stop id": {"stop_token_ids": list(range(0, 400, 2))},
    "long enough": {"min_tokens": 12, "ignore_eos": True},
    "special": {"skip_special_tokens": False},
    "regex": {"structured_outputs": {"regex": "[a-z]{3,9}[0-9]{2}"}},
    "choice": {"structured_outputs": {"choice": ["oui", "non"]}},
    "json": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "max_tokens": 40,
    },
}


@dataclass(frozen=True)
class Told:
    """What a face says of one choice."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stop_reason: int | str | None


def fields(name: str) -> dict[str, Any]:
    """Return a case as a request says it."""
    return {"max_tokens": 16, "seed": 11, "temperature": 1.8} | CORPUS[name]


def params(name: str) -> SamplingParams:
    given = fields(name)
    if "logit_bias" in given:
        given["logit_bias"] = {int(key): bias for key, bias in given["logit_bias"].items()}
    return SamplingParams(**given)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Online]:
    model = DEMO_MODEL
    if not (model / "config.json").exists():
        model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_model_len=1024)
    online = Online(tmp_path_factory.mktemp("stack"), model)
    yield online
    online.call("down")
    online.close()


@pytest.fixture(scope="module")
def offline(stack: Online) -> Iterator[LLM]:
    with LLM(stack.model_folder, kv_cache_memory="16MiB") as llm:
        yield llm


def of_output(output: CompletionOutput) -> Told:
    ids, reason = tuple(output.token_ids), output.finish_reason
    return Told(output.text, ids, reason, output.stop_reason)


def of_outputs(outputs: list[RequestOutput]) -> dict[str, list[Told]]:
    told = [[of_output(one) for one in output.outputs] for output in outputs]
    return dict(zip(CORPUS, told, strict=True))


def of_choice(choice: dict[str, Any]) -> Told:
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    ids, reason = tuple(choice["token_ids"]), choice["finish_reason"]
    return Told(text or "", ids, reason, choice["stop_reason"])


async def whole(http: httpx.AsyncClient, path: str, sent: dict[str, Any]) -> list[Told]:
    reply = await http.post(path, json=sent)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    choices = [of_choice(choice) for choice in body["choices"]]
    assert body["usage"]["completion_tokens"] == sum(len(choice.token_ids) for choice in choices)
    return choices


async def streamed(http: httpx.AsyncClient, path: str, sent: dict[str, Any]) -> list[Told]:
    found: dict[int, Told] = {}
    async for event in events(http, path, sent):
        assert "error" not in event, event
        for choice in event["choices"]:
            before = found.get(choice["index"], Told("", (), None, None))
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            ids = before.token_ids + tuple(choice.get("token_ids") or ())
            end = choice.get("finish_reason"), choice.get("stop_reason")
            found[choice["index"]] = Told(before.text + (text or ""), ids, *end)
    return [found[index] for index in sorted(found)]


async def answers(stack: Online, face: Any, path: str, given: dict[str, Any]) -> Any:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        sent = [
            {"model": stack.model, "return_token_ids": True, **given, **fields(name)}
            for name in CORPUS
        ]
        told = await asyncio.gather(*(face(http, path, one) for one in sent))
    return dict(zip(CORPUS, told, strict=True))


@pytest.mark.parametrize("face", [whole, streamed])
async def test_completions(stack: Online, offline: LLM, face: Any) -> None:
    expected = of_outputs(offline.generate([TEXT] * len(CORPUS), [params(n) for n in CORPUS]))
    assert await answers(stack, face, "/v1/completions", {"prompt": TEXT}) == expected


@pytest.mark.parametrize("face", [whole, streamed])
async def test_chats(stack: Online, offline: LLM, face: Any) -> None:
    expected = of_outputs(offline.chat([CHAT] * len(CORPUS), [params(n) for n in CORPUS]))
    assert await answers(stack, face, "/v1/chat/completions", {"messages": CHAT}) == expected


def test_the_corpus_does_what_it_says(offline: LLM) -> None:
    """Equal answers prove little when a field does nothing."""
    outputs = of_outputs(offline.generate([TEXT] * len(CORPUS), [params(n) for n in CORPUS]))
    first = {name: told[0] for name, told in outputs.items()}
    assert len({choice.text for choice in outputs["choices"]}) > 1
    assert first["choice"].text in ("oui", "non") and first["regex"].text[-2:].isdigit()
    assert first["stop"].stop_reason in ("s", "n")
    assert first["stop kept"].text[-1] == first["stop kept"].stop_reason
    assert set(first["ids"].token_ids) <= set(range(40, 120))
    assert json.loads(first["schema"].text)["a"] is not None
    acting = {"drawn", "penalties", "dry", "ids", "stop", "stop id", "regex", "choice", "json"}
    assert all(first[name].text != first["greedy"].text for name in acting)


def test_streams_offline_are_the_answers(offline: LLM) -> None:
    expected = of_outputs(offline.generate([TEXT] * len(CORPUS), [params(n) for n in CORPUS]))
    for name in list(CORPUS)[::4]:
        texts = [""] * len(expected[name])
        for delta in offline.stream(TEXT, params(name)):
            for output in delta.outputs:
                texts[output.index] += output.text
        assert texts == [told.text for told in expected[name]]


def test_logprobs_are_the_same(stack: Online, offline: LLM) -> None:
    (answer,) = offline.generate(TEXT, SamplingParams(logprobs=3, max_tokens=8, seed=4))
    sent = {"model": stack.model, "prompt": TEXT, "logprobs": 3, "max_tokens": 8, "seed": 4}
    reply = httpx.post(f"{stack.url}/v1/completions", json=sent, timeout=60).json()
    rows = answer.outputs[0].logprobs
    assert rows is not None
    shown = [next(iter(row.values())).logprob for row in rows]
    assert reply["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(shown, rel=1e-6)


def test_vectors_are_the_same(stack: Online, offline: LLM) -> None:
    for options in ({}, {"pooling": "mean"}, {"dimensions": 16}, {"normalize": False}):
        expected = [one.embedding for one in offline.embed([TEXT, "two"], **options)]
        sent = {"model": stack.model, "input": [TEXT, "two"], **options}
        reply = httpx.post(f"{stack.url}/v1/embeddings", json=sent, timeout=60).json()
        assert [row["embedding"] for row in reply["data"]] == expected


def test_prompt_logprobs_are_the_same(stack: Online, offline: LLM) -> None:
    (answer,) = offline.generate(TEXT, SamplingParams(prompt_logprobs=2, max_tokens=2, seed=4))
    assert answer.prompt_logprobs is not None and answer.prompt_token_ids is not None
    first, *rows = answer.prompt_logprobs
    assert first is None and len(rows) == answer.num_prompt_tokens - 1
    texts = [next(iter(row.values())).token for row in rows if row]
    assert TEXT.endswith("".join(texts))
    sent = {"model": stack.model, "prompt": TEXT, "prompt_logprobs": 2, "max_tokens": 2, "seed": 4}
    reply = httpx.post(f"{stack.url}/v1/completions", json=sent, timeout=60).json()
    shown = reply["choices"][0]["prompt_logprobs"]
    assert shown[0] is None
    for row, told in zip(rows, shown[1:], strict=True):
        assert row is not None
        mine = {str(token_id): logprob.logprob for token_id, logprob in row.items()}
        assert {key: entry["logprob"] for key, entry in told.items()} == pytest.approx(mine)


def test_a_prompt_alone_is_told_as_with_an_answer(stack: Online) -> None:
    sent = {"model": stack.model, "prompt": [TEXT, "two"], "echo": True, "logprobs": 1, "seed": 4}
    url = f"{stack.url}/v1/completions"
    alone, with_one = (
        httpx.post(url, json={**sent, "max_tokens": count}, timeout=60).json() for count in (0, 1)
    )
    usage = alone["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens"] == with_one["usage"]["prompt_tokens"]
    for told, more in zip(alone["choices"], with_one["choices"], strict=True):
        assert told["text"] == sent["prompt"][told["index"]] and told["finish_reason"] == "length"
        assert told["logprobs"] == {name: rows[:-1] for name, rows in more["logprobs"].items()}


def test_traces_are_the_same(stack: Online, offline: LLM) -> None:
    asked = {"return_sampler_trace": True, "top_k": 5, "max_tokens": 3, "seed": 4}
    (answer,) = offline.generate(TEXT, SamplingParams(**asked))
    traces = answer.outputs[0].sampler_trace
    assert traces is not None and [trace["index"] for trace in traces] == [0, 1, 2]
    assert [trace["token_id"] for trace in traces] == answer.outputs[0].token_ids
    sent = {"model": stack.model, "prompt": TEXT, **asked}
    reply = httpx.post(f"{stack.url}/v1/completions", json=sent, timeout=60).json()
    assert reply["choices"][0]["sampler_trace"] == traces


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


def test_tool_calls_are_the_same(stack: Online, offline: LLM) -> None:
    asked = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    (answer,) = offline.chat(CHAT, SamplingParams(max_tokens=60, temperature=0, seed=1), **asked)
    output = answer.outputs[0]
    (call,) = output.tool_calls
    assert call["function"]["name"] == "add" and not output.text
    assert json.loads(call["function"]["arguments"])["a"] in (1, 2)
    sent = {"model": stack.model, "messages": CHAT, "max_tokens": 60, "temperature": 0, **asked}
    reply = httpx.post(f"{stack.url}/v1/chat/completions", json=sent, timeout=60).json()
    choice = reply["choices"][0]
    assert choice["finish_reason"] == output.finish_reason == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == call["function"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_prompt_ids(stack: Online, offline: LLM, is_stream: bool) -> None:
    """In vLLM's places: beside the choices of a chat, in the choices of a completion."""
    asked = {"model": stack.model, "return_token_ids": True, "max_tokens": 3, "stream": is_stream}
    chat = offline.chat([CHAT], SamplingParams(max_tokens=1))[0].prompt_token_ids
    texts = [out.prompt_token_ids for out in offline.generate([TEXT, "a b"], SamplingParams())]
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        for path, more, expected in (
            ("/v1/chat/completions", {"messages": CHAT}, [list(chat)]),
            ("/v1/completions", {"prompt": [TEXT, "a b"]}, [list(ids) for ids in texts]),
        ):
            sent = {**asked, **more}
            if is_stream:
                told = [event async for event in events(http, path, sent)]
            else:
                told = [(await http.post(path, json=sent)).raise_for_status().json()]
            places = told if "messages" in more else [c for e in told for c in e["choices"]]
            ids = [place["prompt_token_ids"] for place in places if "prompt_token_ids" in place]
            assert sorted(ids) == sorted(expected)
