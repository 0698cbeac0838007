"""The whole stack as a user starts it, over HTTP: right answers, and no trace of who left or died.

Every test runs on one process of each tier, and on two of each but the engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from millrace import LLM, SamplingParams
from millrace.project import DEMO_MODEL
from tests.support.online import Online, body, events, read_all
from tests.support.stack import eventually
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.timeout(90)
LONG = 400
"""Tokens of a stream that is to be disturbed."""
SLOW = "reference"
"""Kernels that take their time: a stream must not end before it is disturbed."""
SURVIVORS = [f"survivor {i}" for i in range(8)]
CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(
    scope="module",
    params=[(), ("--gateways", "2", "--tokenizers", "2", "--workers", "2")],
    ids=["single", "double"],
)
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Online]:
    """One process a tier with the demo model when it is present, two with the tiny one."""
    model = DEMO_MODEL
    if request.param or not (DEMO_MODEL / "config.json").exists():
        model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_model_len=1024)
    online = Online(tmp_path_factory.mktemp("stack"), model, *request.param, KERNEL_LEVEL=SLOW)
    yield online
    done = online.call("down")
    left = online.left()
    online.close()
    assert done.returncode == 0, done.stderr
    assert left == []


@pytest.fixture(scope="module")
def offline(stack: Online) -> Iterator[LLM]:
    with LLM(stack.model_folder, kernel_level=SLOW, kv_cache_memory="16MiB") as llm:
        yield llm


@pytest.fixture
def client(stack: Online) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def expected(offline: LLM, prompts: list[str], max_tokens: int) -> list[str]:
    params = [
        SamplingParams(max_tokens=max_tokens, seed=seed, temperature=1, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    return [output.outputs[0].text for output in offline.generate(prompts, params)]


@pytest.fixture(scope="module")
def undisturbed(offline: LLM) -> list[str]:
    return expected(offline, SURVIVORS, LONG)


async def test_64_streams_each_with_its_own_text(stack: Online, offline: LLM) -> None:
    prompts = [f"{'word ' * (i % 9)}{i}" for i in range(64)]
    bodies = [
        body(stack.model, prompt, seed, max_tokens=24, ignore_eos=True)
        for seed, prompt in enumerate(prompts)
    ]
    assert await read_all(stack.url, bodies) == expected(offline, prompts, 24)
    stack.wait_until_idle()


def test_models(stack: Online, client: OpenAI) -> None:
    (served,) = client.models.list().data
    assert served.id == stack.model
    assert client.models.retrieve(served.id).id == served.id
    assert served.id in stack.call("models").stdout


def test_chat(stack: Online, client: OpenAI, offline: LLM) -> None:
    (answer,) = offline.chat(CHAT, SamplingParams(max_tokens=16, seed=3, temperature=1))
    asked = {"model": stack.model, "messages": CHAT, "max_tokens": 16, "seed": 3, "temperature": 1}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == answer.outputs[0].text
    assert whole.choices[0].finish_reason == answer.outputs[0].finish_reason
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == answer.num_prompt_tokens
    stream = client.chat.completions.create(**asked, stream=True)
    choices = [choice for chunk in stream for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == answer.outputs[0].text
    reasons = [choice.finish_reason for choice in choices]
    assert reasons == [None] * (len(choices) - 1) + [answer.outputs[0].finish_reason]


def test_usage_tells_what_was_cached(stack: Online, client: OpenAI) -> None:
    """Three times, because the stack may have two replicas, each with a cache of its own."""
    cached: list[int] = []
    texts: list[str] = []
    for stop in (None, None, None, texts):  # what ends by a stop string tells it, too
        whole = client.completions.create(
            model=stack.model, prompt="the mill turns " * 20, max_tokens=4, seed=1, stop=stop
        )
        assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
        cached.append(whole.usage.prompt_tokens_details.cached_tokens or 0)
        texts.append(whole.choices[0].text)
    assert cached[0] == 0 and 0 < cached[2] < whole.usage.prompt_tokens and cached[2] % 16 == 0
    assert len(set(texts[:3])) == 1 and (texts[3], cached[3]) == ("", cached[2])


def test_completions(stack: Online, client: OpenAI, offline: LLM) -> None:
    (output,) = offline.generate("Hello", SamplingParams(max_tokens=16, seed=3, temperature=1))
    asked = {"model": stack.model, "prompt": "Hello", "max_tokens": 16, "seed": 3, "temperature": 1}
    whole = client.completions.create(**asked)
    assert whole.choices[0].text == output.outputs[0].text
    stream = client.completions.create(**asked, stream=True)
    pieces = [choice.text for chunk in stream for choice in chunk.choices]
    assert "".join(pieces) == output.outputs[0].text


def test_chat_in_the_terminal(stack: Online, offline: LLM) -> None:
    done = subprocess.run(
        stack.command("chat", "--max-tokens", "8", "--seed", "1", "--temperature", "1"),
        input="Hi\n/exit\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    (answer,) = offline.chat(CHAT, SamplingParams(max_tokens=8, seed=1, temperature=1))
    assert done.stderr == ""
    assert done.stdout == answer.outputs[0].text + "\n"


async def test_a_cancel_call_ends_a_stream(stack: Online) -> None:
    told = {"include_usage": True}
    sent = body(stack.model, "Hello", 1, max_tokens=900, ignore_eos=True, stream_options=told)
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as http:
        stream = events(http, "/v1/completions", sent)
        first = await anext(stream)
        reply = await http.post(f"/v1/requests/{first['id']}/cancel")
        assert (reply.status_code, reply.json()["cancelled"]) == (200, 1)
        rest = [event async for event in stream]
        assert rest[-1]["error"]["code"] == "cancelled"
        assert 0 < rest[-2]["usage"]["completion_tokens"] < 900
        again = await http.post(f"/v1/requests/{first['id']}/cancel")
        assert again.status_code == 404
    stack.wait_until_idle()


async def test_the_engines_books_answer_through_all_tiers(stack: Online) -> None:
    sent = body(stack.model, "Z" * 200, 1, max_tokens=2)

    async def cached(http: httpx.AsyncClient) -> int:
        told = (await http.post("/v1/requests/explain", json=sent)).json()
        (prompt,) = told["prompts"]
        (engine,) = prompt["engines"]
        assert {row["num_prompt_tokens"] for row in engine["replicas"]} == {prompt["prompt_tokens"]}
        return max(row["num_cached_tokens"] for row in engine["replicas"])

    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as http:
        await http.post("/v1/completions", json=sent)
        assert await cached(http) >= 16
        (engine,) = (await http.get("/v1/cache")).json()["engines"]
        num_cached = sum(row["blocks"]["cached"] for row in engine["replicas"])
        (engine,) = (await http.post("/v1/cache/reset")).json()["engines"]
        assert sum(row["num_blocks_dropped"] for row in engine["replicas"]) == num_cached > 0
        assert await cached(http) == 0
        stream = events(http, "/v1/completions", sent | {"max_tokens": 800, "ignore_eos": True})
        first = await anext(stream)
        (choice,) = (await http.get(f"/v1/requests/{first['id']}")).json()["choices"]
        assert choice["state"] == "running" and choice["num_output_tokens"] > 0
        await stream.aclose()
        stack.wait_until_idle()
        assert (await http.get(f"/v1/requests/{first['id']}")).status_code == 404


async def test_a_disconnect_frees_everything(stack: Online) -> None:
    sent = body(stack.model, "Hello", 1, max_tokens=900, ignore_eos=True, n=4)
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as http:
        stream = events(http, "/v1/completions", sent)
        await anext(stream)
        await asyncio.to_thread(eventually, lambda: not stack.is_idle())
        await stream.aclose()
    stack.wait_until_idle()


def test_a_killed_client_frees_everything(stack: Online) -> None:
    code = (
        "import sys; from millrace.http import Server\n"
        f"sent = {body(stack.model, 'Hello', 1, max_tokens=900, ignore_eos=True, stream=True)}\n"
        f"for event in Server({stack.url!r}, None).events('/v1/completions', sent):\n"
        "    print(event, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        eventually(lambda: not stack.is_idle())
        client.kill()
    stack.wait_until_idle()


@pytest.mark.parametrize("tier", ["worker", "tokenizer-service", "engine-core"])
async def test_streams_survive_the_death_of_a_tier(
    stack: Online, undisturbed: list[str], tier: str
) -> None:
    bodies = [
        body(stack.model, prompt, seed, max_tokens=LONG, ignore_eos=True)
        for seed, prompt in enumerate(SURVIVORS)
    ]

    before = stack.num_replays(tier)

    def kill() -> None:
        os.kill(stack.pid(f"{tier}-1"), signal.SIGKILL)

    assert await read_all(stack.url, bodies, kill) == undisturbed
    stack.wait_until_whole()
    stack.wait_until_idle()
    assert stack.num_replays(tier) > before, "it died too late to matter"
