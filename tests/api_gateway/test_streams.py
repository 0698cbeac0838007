from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from api_gateway.__main__ import Gateway
from api_gateway.asgi import Message
from api_gateway.watch import IDLE
from protos.common_pb2 import ABORTED, DEADLINE, ERROR, IGNORED, LENGTH, STOPPED, Finish
from protos.tokenizer_pb2 import Started, TextBatch
from tests.api_gateway.conftest import asked_for_a_chat, serving, until
from tests.api_gateway.requests import chat, completion, events, text_of
from tests.support.fake_tokenizer import MODEL, FakeTokenizer, Stream

GOLDEN = Path(__file__).parent / "golden"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


def rich(stream: Stream, slot: int) -> None:
    stream.start(slot)
    stream.token(slot, "Hi", 11, logprob=-0.5)
    stream.token(slot, "", 12, logprob=-1.5)  # half a character is held back
    stream.token(slot, " ☃", 13, logprob=float("-inf"))
    stream.finish(slot, LENGTH)


def stopped_by_string(stream: Stream, slot: int) -> None:
    stream.start(slot)
    stream.token(slot, 'say "x"\n', 11, 12)
    stream.finish(slot, stop_string="END", num_output_tokens=4, num_cached_tokens=3)


def echo_choice(stream: Stream, slot: int) -> None:
    first = stream.requests[slot].slot
    stream.start(slot)
    stream.token(slot, f"choice {slot - first}")
    stream.finish(slot, stop_token_id=7)


STORIES: dict[str, tuple[str, dict[str, object], Callable[[Stream, int], None] | None]] = {
    "chat": ("/v1/chat/completions", chat(stream=True), None),
    "chat_usage": ("/v1/chat/completions", chat(**USAGE), stopped_by_string),
    "chat_rich": (
        "/v1/chat/completions",
        chat(
            stream=True, logprobs=True, top_logprobs=2, return_token_ids=True,
            stream_options=CONTINUOUS,
        ),
        rich,
    ),
    "chat_two_choices": ("/v1/chat/completions", chat(stream=True, n=2), echo_choice),
    "completion": ("/v1/completions", completion(**USAGE), None),
    "completion_rich": ("/v1/completions", completion(stream=True, logprobs=2), rich),
    "completion_prompts": (
        "/v1/completions", completion(stream=True, prompt=["a", "b"], n=2), echo_choice,
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
async def test_streams_are_these_bytes(
    story: str, client: httpx.AsyncClient, fake: FakeTokenizer, pytestconfig: pytest.Config
) -> None:
    path, body, script = STORIES[story]
    fake.script = script or fake.script
    reply = await client.post(path, json={**body, "request_id": "golden"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-request-id"] == "golden"
    shown = re.sub(r'"created":\d{10}', '"created":0', reply.text)
    shown = re.sub(r'"ttft_ms":[0-9.]+', '"ttft_ms":0.0', shown)
    golden = GOLDEN / f"{story}.sse"
    if pytestconfig.getoption("--golden-rewrite"):
        golden.write_text(shown)
    assert shown == golden.read_text()


async def test_every_chunk_has_the_lists_that_were_asked_for(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    """Clients add them up, and in OpenAI's last chunk they are there and empty."""
    fake.script = rich
    asked = completion(stream=True, logprobs=2, return_token_ids=True)
    stream = events((await client.post("/v1/completions", json=asked)).text)
    told = [choice for event in stream for choice in event["choices"]]
    assert [choice["token_ids"] for choice in told] == [[11], [12], [13], []]
    assert [choice["logprobs"]["tokens"] for choice in told] == [["Hi"], [""], [" ☃"], []]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    assert told[-1]["logprobs"] == {name: [] for name in names}


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_and_a_whole_reply_say_the_same(client: httpx.AsyncClient, n: int) -> None:
    whole = (await client.post("/v1/completions", json=completion(n=n))).json()
    stream = events((await client.post("/v1/completions", json=completion(n=n, **USAGE))).text)
    assert [text_of(stream, k) for k in range(n)] == [c["text"] for c in whole["choices"]]
    assert stream[-1]["usage"] == whole["usage"]
    assert stream[-1]["timings"].keys() == whole["timings"].keys()


@pytest.mark.parametrize(
    "reason, detail, status",
    [
        (IGNORED, {"kind": "InvalidRequest", "message": "no", "param": "seed"}, 400),
        (IGNORED, {"kind": "Overloaded", "message": "full", "retry_after_ms": 2500}, 429),
        (IGNORED, {"kind": "Unprocessable", "message": "template", "param": "messages"}, 422),
        (ERROR, {"kind": "Internal", "message": "broken"}, 500),
        (ERROR, {"kind": "Unavailable", "message": "stuck"}, 503),
        (ERROR, {"kind": "nonsense", "message": "?"}, 500),
        (DEADLINE, {"kind": "DeadlineExceeded", "message": "late"}, 408),
        (ABORTED, {}, 499),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_what_fails_before_its_first_token_has_a_real_status(
    client: httpx.AsyncClient,
    fake: FakeTokenizer,
    reason: int,
    detail: dict[str, object],
    status: int,
    is_stream: bool,
) -> None:
    def refuse(stream: Stream, slot: int) -> None:
        stream.start(slot)
        if detail:
            stream.fail(slot, reason, **detail)  # type: ignore[arg-type]
        else:
            stream.finish(slot, reason)  # type: ignore[arg-type]

    fake.script = refuse
    reply = await client.post("/v1/chat/completions", json=chat(stream=is_stream))
    assert reply.status_code == status
    error = reply.json()["error"]
    assert error["request_id"] == reply.headers["x-request-id"]
    assert error["param"] == (detail.get("param") or None)
    if status == 429:
        assert reply.headers["retry-after"] == "3" and error["retry_after_ms"] == 2500


@pytest.mark.parametrize(
    "reason, code", [(ERROR, "internal"), (DEADLINE, "deadline_exceeded"), (ABORTED, "cancelled")]
)
async def test_what_fails_later_ends_in_an_error_frame(
    client: httpx.AsyncClient, fake: FakeTokenizer, reason: int, code: str
) -> None:
    def break_down(stream: Stream, slot: int) -> None:
        stream.token(slot, "Once upon")
        if reason == ERROR:
            stream.fail(slot, ERROR, kind="Internal", message="broken")
        else:
            stream.finish(slot, reason)  # type: ignore[arg-type]

    fake.script = break_down
    reply = await client.post("/v1/chat/completions", json=chat(stream=True))
    assert reply.status_code == 200 and "Once upon" in reply.text
    *_, last, rest = reply.text.split("\n\n")
    assert rest == "" and last.startswith("event: error\ndata: ")
    error = json.loads(last.partition("data: ")[2])["error"]
    assert error["code"] == code and error["request_id"] == reply.headers["x-request-id"]
    assert "[DONE]" not in reply.text and '"usage"' not in reply.text


async def test_one_failed_choice_ends_the_whole_request(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def one_fails(stream: Stream, slot: int) -> None:
        if slot == stream.requests[slot].slot:
            stream.fail(slot, ERROR, kind="Internal", message="broken")

    fake.script = one_fails
    reply = await client.post("/v1/chat/completions", json=chat(n=3))
    assert reply.status_code == 500
    assert {await fake.aborts.get(), await fake.aborts.get()} == {2, 3}


async def test_a_silent_stream_gets_comments(fake: FakeTokenizer) -> None:
    fake.script = None
    async with (
        serving(fake.address, keep_alive_s=0.01) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=20) as http,
        http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as reply,
    ):
        stream, slot = await fake.arrivals.get()
        lines = reply.aiter_lines()
        seen = [line async for line in until_line(lines, ": keep-alive")]
        assert json.loads(seen[0][6:])["choices"][0]["delta"]["role"] == "assistant"
        stream.token(slot, "late")
        stream.finish(slot)
        rest = [line async for line in lines]
        assert any('"late"' in line for line in rest) and "data: [DONE]" in rest


async def test_a_choice_that_ends_while_a_comment_goes_out_ends_once(
    gateway: Gateway, fake: FakeTokenizer
) -> None:
    """A full socket holds a comment back: what comes meanwhile is heard, and counted, once."""
    fake.script = None
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if b": keep-alive" in sent[-1]:
            demux.deliver(TextBatch(finishes=[Finish(slot=first, reason=STOPPED)]))

    answering = asyncio.create_task(asked_for_a_chat(gateway, send, stream=True, n=2))
    stream, first = await fake.arrivals.get()
    (link,) = gateway.clients.links()
    (job,), demux = link.jobs, link.demux
    demux.deliver(TextBatch(started=[Started(slot=first, num_prompt_tokens=5)]))
    job.mailbox.post(demux.choices[first])
    job.mailbox.ring(IDLE)  # both before the one who waits can look
    await until(lambda: job.choices[0].finish is not None)
    stream.token(first + 1, "more")
    stream.finish(first + 1)
    await answering
    text = b"".join(sent).decode()
    assert text.count('"finish_reason":"stop"') == 2, text
    assert '"more"' in text and text.endswith("data: [DONE]\n\n")


async def until_line(lines, last: str):  # type: ignore[no-untyped-def]
    async for line in lines:
        yield line
        if line == last:
            return


async def test_pending_text_becomes_one_chunk(
    gateway: Gateway, client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def burst(stream: Stream, slot: int) -> None:
        link = gateway.clients.links()[0]
        choice = link.demux.choices[slot]
        for word in ("a", "b", "c"):  # all before the consumer has a turn
            choice.add(choice.text_bytes, word, choice.num_tokens, bytes(4))
            choice.mailbox.post(choice)
        stream.finish(slot, num_output_tokens=3)

    fake.script = burst
    reply = await client.post("/v1/completions", json=completion(stream=True))
    texts = [e["choices"][0]["text"] for e in events(reply.text)]
    assert texts == ["abc", ""]


async def test_text_arrives_while_the_request_runs(
    served: tuple[Gateway, httpx.AsyncClient], fake: FakeTokenizer
) -> None:
    fake.script = None
    _, http = served
    request = http.build_request("POST", "/v1/completions", json=completion(stream=True))
    asked = asyncio.create_task(http.send(request, stream=True))
    stream, slot = await fake.arrivals.get()
    stream.token(slot, "one")
    reply = await asked
    lines = reply.aiter_lines()
    for word in ("one", "two"):
        line = [line async for line in until_line_with(lines, "data:")][-1]
        assert json.loads(line[6:])["choices"][0]["text"] == word
        if word == "one":
            stream.token(slot, "two")
    stream.finish(slot)
    assert [line async for line in lines if line][-1] == "data: [DONE]"
    await reply.aclose()


async def until_line_with(lines, start: str):  # type: ignore[no-untyped-def]
    async for line in lines:
        yield line
        if line.startswith(start):
            return


def spelled(stream: Stream, slot: int) -> None:
    """Three tokens spell the opening tag: whose the first are, nobody knows until the last."""
    stream.start(slot)
    for part, channel in (("", 0), ("", 0), ("", 1), ("Hmm", 1), ("", 1), ("42", 0), ("!", 0)):
        stream.token(slot, part, logprob=-0.5, channel=channel)
    stream.finish(slot, num_reasoning_tokens=5)


async def test_logprobs_are_of_the_answer_alone_where_several_tokens_spell_the_tag_of_thoughts(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = spelled
    url = "/v1/chat/completions"
    whole = (await client.post(url, json=chat(logprobs=True))).json()
    shown = whole["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in shown] == ["42", "!"]
    stream = events((await client.post(url, json=chat(logprobs=True, stream=True))).text)
    told = [choice["logprobs"] for event in stream for choice in event["choices"]]
    assert [row for rows in told if rows for row in rows["content"]] == shown


async def test_so_are_those_of_a_response(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.script = spelled
    body = {"model": MODEL, "input": "hi", "include": ["message.output_text.logprobs"]}
    whole = (await client.post("/v1/responses", json=body)).json()
    shown = whole["output"][-1]["content"][0]["logprobs"]
    assert [row["token"] for row in shown] == ["42", "!"]
    stream = (await client.post("/v1/responses", json={**body, "stream": True})).text
    told = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    assert [row for event in deltas for row in event["logprobs"]] == shown
