"""A streamed echo with logprobs adds up to the reply in one piece; with `max_tokens` 0, too."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from api_gateway.__main__ import Gateway
from protos.common_pb2 import IGNORED, LENGTH, SCORE
from tests.api_gateway.requests import completion, events
from tests.support.fake_tokenizer import FakeTokenizer, Stream

COMPLETIONS = "/v1/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def joined(text: str) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Return the choices that the chunks of a stream add up to, and its usage."""
    found: dict[int, dict[str, Any]] = {}
    *chunks, last = events(text)
    for chunk in chunks:
        for shown in chunk["choices"]:
            whole = found.setdefault(shown["index"], {"text": "", "logprobs": {}, "ends": []})
            whole["text"] += shown["text"]
            for name, values in (shown["logprobs"] or {}).items():
                whole["logprobs"].setdefault(name, []).extend(values)
            whole["ends"] += [shown["finish_reason"]] if shown["finish_reason"] else []
    return found, last["usage"]


def answered(stream: Stream, slot: int) -> None:
    """The second choice begins, and ends, before all of the prompt is told by the first."""
    first = stream.requests[slot].slot
    if slot == first:
        stream.start(slot, 3)
        stream.prompt_logprobs(slot, "h", "é", first=0)
        return
    stream.start(slot, 3)
    stream.token(slot, " b", 12, logprob=-1.5)
    stream.finish(slot, LENGTH, num_prompt_tokens=3)
    stream.prompt_logprobs(first, "llo", first=2)
    stream.token(first, " a", 11, logprob=-0.5)
    stream.token(first, " c", 13, logprob=-2.5)
    stream.finish(first, LENGTH, num_prompt_tokens=3)


def scored(stream: Stream, slot: int) -> None:
    assert stream.requests[slot].limits.kind == SCORE
    stream.start(slot, 3)
    if slot == stream.requests[slot].slot:
        stream.prompt_logprobs(slot, "h", "é", "llo", first=0)
    stream.finish(slot, LENGTH, num_prompt_tokens=3)


@pytest.mark.parametrize("script, max_tokens", [(answered, 2), (scored, 0)])
async def test_a_stream_adds_up_to_the_whole_reply(
    client: httpx.AsyncClient, fake: FakeTokenizer, script: Any, max_tokens: int
) -> None:
    fake.script = script
    body = completion(prompt="héllo", echo=True, logprobs=1, n=2, max_tokens=max_tokens)
    whole = (await client.post(COMPLETIONS, json=body)).json()
    shown, usage = joined((await client.post(COMPLETIONS, json=body | USAGE)).text)
    assert usage == whole["usage"]
    assert usage["completion_tokens"] == (3 if max_tokens else 0)
    for choice in whole["choices"]:
        streamed = shown[choice["index"]]
        assert (streamed["text"], streamed["ends"]) == (choice["text"], ["length"])
        assert streamed["logprobs"] == choice["logprobs"]
        assert choice["text"].startswith("héllo")
        assert choice["logprobs"]["tokens"][:3] == ["h", "é", "llo"]


async def test_an_echo_of_one_token_has_nothing_to_wait_for(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def run(stream: Stream, slot: int) -> None:
        stream.start(slot, 1)
        stream.token(slot, "b", 12, logprob=-1.5)
        stream.finish(slot, LENGTH, num_prompt_tokens=1)

    fake.script = run
    body = completion(prompt="a", echo=True, logprobs=0, **USAGE)
    shown, _ = joined((await client.post(COMPLETIONS, json=body)).text)
    assert shown[0]["text"] == "ab" and shown[0]["logprobs"]["tokens"] == ["a", "b"]


async def test_an_echo_goes_out_while_its_answer_is_made(
    served: tuple[Gateway, httpx.AsyncClient], fake: FakeTokenizer
) -> None:
    fake.script = None
    body = completion(prompt="héllo", echo=True, logprobs=1, stream=True)
    request = served[1].build_request("POST", COMPLETIONS, json=body)
    asked = asyncio.create_task(served[1].send(request, stream=True))
    stream, slot = await fake.arrivals.get()
    stream.start(slot, 3)
    stream.prompt_logprobs(slot, "h", "é", first=0)
    stream.prompt_logprobs(slot, "llo", first=2)
    reply = await asked
    first = await anext(reply.aiter_lines())
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "héllo"
    stream.finish(slot)
    await reply.aclose()


async def test_a_refusal_is_a_status_not_an_echo(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        stream.fail(slot, IGNORED, kind="InvalidRequest", message="too long", param="prompt")

    fake.script = refuse
    body = completion(prompt="a", echo=True, logprobs=0, **USAGE)
    assert (await client.post(COMPLETIONS, json=body)).status_code == 400
