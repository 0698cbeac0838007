"""The logprobs of a prompt that many choices repeat: made once, and bounded in a reply."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from api_gateway import echo, told, translate
from protos.limits import MAX_PROMPT_LOGPROBS
from tests.api_gateway.requests import chat, completion, events
from tests.support.fake_tokenizer import FakeTokenizer, Stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = ["a", "b", "c"]


def prompted(stream: Stream, slot: int) -> None:
    stream.start(slot, len(TOKENS))
    if slot == stream.requests[slot].slot:
        stream.prompt_logprobs(slot, *TOKENS, first=0)
    stream.token(slot, "!", logprob=-0.25)
    stream.finish(slot)


@pytest.mark.parametrize(
    ("more", "maker", "num_made"),
    [
        ({"prompt_logprobs": 1}, (told, "prompt_logprobs"), 1),
        ({"echo": True, "logprobs": 1}, (told, "echo_logprobs"), 1),
        ({"echo": True, "logprobs": 1, "stream": True}, (echo, "echo_logprobs"), 1),
        ({"prompt": ["abc", "def"], "prompt_logprobs": 1}, (told, "prompt_logprobs"), 2),
    ],
)
async def test_what_choices_repeat_is_made_once(
    client: httpx.AsyncClient, fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch,
    more: dict[str, Any], maker: tuple[Any, str], num_made: int,
) -> None:  # fmt: skip
    made: list[Any] = []
    make = getattr(*maker)

    def counted(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(*maker, counted)
    fake.script = prompted
    reply = await client.post(COMPLETIONS, json=completion(**{"prompt": "abc", **more, "n": 3}))
    assert reply.status_code == 200 and len(made) == num_made
    shown = events(reply.text) if more.get("stream") else [reply.json()]
    choices = [choice for event in shown for choice in event["choices"]]
    if "prompt_logprobs" in more:
        told_of = [choice["prompt_logprobs"] for choice in choices]
        assert [len(rows) for rows in told_of] == [len(TOKENS)] * 3 * num_made
    for index in range(3) if "echo" in more else ():
        rows = [c["logprobs"] for c in choices if c["index"] == index and c["logprobs"]]
        assert [token for row in rows for token in row["tokens"]] == [*TOKENS, "!"]
        assert [at for row in rows for at in row["text_offset"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"prompt_logprobs": 20}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20}, "logprobs"),
        ({"echo": True, "logprobs": 20, "stream": True}, "logprobs"),
    ],
)
async def test_a_reply_that_would_repeat_too_much_is_refused(
    client: httpx.AsyncClient, fake: FakeTokenizer, more: dict[str, Any], field: str
) -> None:
    """As soon as the length of the prompt is known, and not when all of it is computed."""
    fake.script = None
    asked = asyncio.create_task(client.post(COMPLETIONS, json=completion(n=128, **more)))
    stream, slot = await fake.arrivals.get()
    stream.start(slot, 5000)
    stream.prompt_logprobs(slot, "a", first=0)
    reply = await asked
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, field)
    assert error["message"].startswith(f"{field}: {128 * 5000 * 21} log-probabilities of prompts")
    assert f"{MAX_PROMPT_LOGPROBS} are allowed" in error["message"]
    assert await fake.aborts.get() == slot


@pytest.mark.parametrize("prompt", ["abcd", ["ab", "cd"], [[1, 2, 3]]])
async def test_an_echo_that_would_repeat_too_much_is_refused(
    client: httpx.AsyncClient, fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch, prompt: Any
) -> None:
    """A body of 4 MB would have been a reply of 512 MB, and was held whole."""
    body = completion(prompt=prompt, echo=True, n=3)
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200
    monkeypatch.setattr(told, "MAX_ECHO_CHARS", 8)
    reply = await client.post(COMPLETIONS, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "echo")
    assert error["message"].endswith("; 8 are allowed in a reply")


async def test_what_prompts_repeat_is_bounded(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 256 prompts is sent with a grammar of its own copy: 1 MB became 200 MB."""
    monkeypatch.setattr(translate, "MAX_REPEATED_BYTES", 3000)
    more = {"allowed_token_ids": list(range(300))}
    for count, status in ((2, 200), (3, 400)):
        body = completion(prompt=["a" * 5000] * count, **more)
        reply = await client.post(COMPLETIONS, json=body)
        assert reply.status_code == status
    error = reply.json()["error"]
    assert error["param"] == "prompt" and "3000 are allowed" in error["message"]


async def test_a_chat_tells_its_prompt_once_however_many_answers_it_has(
    client: httpx.AsyncClient, fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script = prompted
    monkeypatch.setattr(told, "MAX_PROMPT_LOGPROBS", len(TOKENS) * 2)
    reply = await client.post(CHAT, json=chat(n=3, prompt_logprobs=1))
    assert (reply.status_code, len(reply.json()["prompt_logprobs"])) == (200, len(TOKENS))
    reply = await client.post(CHAT, json=chat(n=3, prompt_logprobs=2))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt_logprobs")
    reply = await client.post(COMPLETIONS, json=completion(n=2, prompt_logprobs=1))
    assert reply.status_code == 400


@pytest.mark.parametrize(("num_echo", "status"), [(0, 200), (1, 400)])
async def test_the_bound_counts_an_echo_and_prompt_logprobs_together(
    client: httpx.AsyncClient, fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch,
    num_echo: int, status: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(told, "MAX_PROMPT_LOGPROBS", 3 * len(TOKENS))
    fake.script = prompted
    more = {"echo": True, "logprobs": num_echo, "prompt_logprobs": 1}
    reply = await client.post(COMPLETIONS, json=completion(prompt="abc", **more))
    assert reply.status_code == status


@pytest.mark.parametrize(("num_echo", "num_prompt"), [(0, 1), (1, 0), (1, 1)])
async def test_an_echo_and_prompt_logprobs_each_tell_what_they_asked_for(
    client: httpx.AsyncClient, fake: FakeTokenizer, num_echo: int, num_prompt: int
) -> None:
    """The engine is asked once, for the greater number; the other had it too."""
    fake.script = prompted
    more = {"echo": True, "logprobs": num_echo, "prompt_logprobs": num_prompt}
    (choice,) = (await client.post(COMPLETIONS, json=completion(**more))).json()["choices"]
    told_of = choice["prompt_logprobs"][1:]
    assert [len(row) for row in told_of] == [1 + num_prompt] * 2
    echoed = choice["logprobs"]["top_logprobs"][1:3]
    assert [len(row) for row in echoed] == [1 + num_echo] * 2
