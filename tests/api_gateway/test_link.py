"""What may go down the stream that all requests to a tokenizer share."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from api_gateway import link
from api_gateway.clients import TextClients
from api_gateway.job import Job
from common.peers import Stream
from common.rpc import MAX_MERGED_BYTES, MAX_MESSAGE_BYTES
from protos.common_pb2 import STOPPED, Finish, Limits, SessionOpened
from protos.tokenizer_pb2 import TextRequest
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat, completion
from tests.support.fake_tokenizer import MODEL, FakeTokenizer, echo


def job_of(num_bytes: int) -> Job:
    prompt = "x" * num_bytes
    return Job([TextRequest(model=MODEL, prompt=prompt, limits=Limits(n=1))])


async def end_of(job: Job, clients: TextClients) -> Finish:
    while job.unfinished:
        await job.mailbox.wait()
    clients.release(job)
    assert job.choices[0].finish is not None
    return job.choices[0].finish


async def test_a_request_that_cannot_pass_ends_alone(fake: FakeTokenizer) -> None:
    """It would end the stream, be sent again on the next one, and take its neighbours with it."""
    fake.script = None
    async with running(fake.address) as gateway:
        clients = gateway.clients
        await until(lambda: bool(clients.links()))
        neighbour, large = job_of(1), job_of(MAX_MESSAGE_BYTES)
        clients.submit(neighbour)
        stream, slot = await fake.arrivals.get()
        clients.submit(large)
        error = (await end_of(large, clients)).error
        assert (error.kind, error.code) == ("PayloadTooLarge", "request_too_large")
        assert f"{link.MOST_BYTES} are allowed" in error.message
        echo()(stream, slot)
        assert (await end_of(neighbour, clients)).reason == STOPPED
        assert (neighbour.num_replays, len(fake.streams)) == (0, 1)


async def test_the_largest_request_passes_behind_others(fake: FakeTokenizer) -> None:
    async with running(fake.address) as gateway:
        clients = gateway.clients
        await until(lambda: bool(clients.links()))
        jobs = [job_of(MAX_MERGED_BYTES - 100), job_of(link.MOST_BYTES - 100)]
        for job in jobs:
            clients.submit(job)
        ends = await asyncio.gather(*(end_of(job, clients) for job in jobs))
        assert [finish.reason for finish in ends] == [STOPPED, STOPPED]
        assert len(fake.streams) == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_who_sent_it_is_told(
    fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    async with running(fake.address) as gateway, in_process(gateway) as http:
        monkeypatch.setattr(link, "MOST_BYTES", 1000)
        long = chat(messages=[{"role": "user", "content": "x" * 1000}], stream=is_stream)
        for path, body in (
            ("/v1/chat/completions", long),
            ("/v1/completions", completion(prompt=["a", "x" * 1000], stream=is_stream)),
            ("/v1/chat/completions/input_tokens", long),
            ("/tokenize", {"prompt": "x" * 1000}),
        ):
            reply = await http.post(path, json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (413, "request_too_large"), path
        assert (await http.post("/v1/completions", json=completion())).status_code == 200
        assert len(fake.streams) == 1


async def test_engines_that_went_are_forgotten(fake: FakeTokenizer) -> None:
    """Each request looks at all of them, and in a cluster they come and go under new names."""
    async with running(fake.address) as gateway:
        await until(lambda: bool(gateway.clients.states()))
        (line,) = gateway.clients.links()
        ((engine, (state, heard_s)),) = line.states.items()
        line.states |= {
            "gone": (state, heard_s - link.FORGET_ENGINE_AFTER_S),
            "silent": (state, heard_s - link.FORGET_ENGINE_AFTER_S / 2),
        }
        fake.streams[0].state(ready=True)
        await until(lambda: "gone" not in line.states)
        assert set(line.states) == {engine, "silent"}


class Wire:
    """A call that is silent. What is written to it fails, and its reader is stopped just then."""

    def __init__(self) -> None:
        self.reader: asyncio.Task[None] | None = None
        self._told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        return await self._told

    async def write(self, message: Any) -> None:
        assert self.reader is not None
        self.reader.cancel()
        raise RuntimeError("the other side is gone")

    def cancel(self) -> None:
        self._told.cancel()


async def test_a_stop_is_heard_beside_a_write_that_fails() -> None:
    """Taken for the end of the stream alone, it would be dialled anew, and the stop never end."""
    wire = Wire()
    stream = Stream("t:1", cast(grpc.aio.Channel, None), wire)
    line = link.Link(stream, SessionOpened(session=1), lambda job, choices: None)
    job = job_of(1)
    wire.reader = asyncio.create_task(line.converse())
    line.send(job.requests[0], job.choices)
    with pytest.raises(asyncio.CancelledError):
        await wire.reader
