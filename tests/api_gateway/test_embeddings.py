"""Vectors: their forms, their length, their parts."""

from __future__ import annotations

import asyncio
import base64
import math
import struct

import httpx
import pytest

from protos.common_pb2 import EMBED, LAST, MEAN
from tests.api_gateway.requests import embedding
from tests.support.fake_tokenizer import FakeTokenizer, Stream

URL = "/v1/embeddings"
VECTOR = (3.0, 4.0, 12.0)


def embed(stream: Stream, slot: int) -> None:
    stream.start(slot)
    stream.bulk(slot, embedding=struct.pack("<3f", *VECTOR))
    stream.finish(slot, num_output_tokens=0)


async def test_vectors_have_length_one_in_both_forms(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = embed
    reply = (await client.post(URL, json=embedding(input=["a", "b"]))).json()
    assert reply["object"] == "list" and reply["model"]
    assert [row["index"] for row in reply["data"]] == [0, 1]
    wanted = [x / 13 for x in VECTOR]
    assert reply["data"][0]["embedding"] == pytest.approx(wanted, rel=1e-6)
    assert reply["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    coded = (await client.post(URL, json=embedding(encoding_format="base64"))).json()
    packed = base64.b64decode(coded["data"][0]["embedding"])
    assert list(struct.unpack("<3f", packed)) == reply["data"][0]["embedding"]


async def test_a_part_of_a_vector_has_length_one_again(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = embed
    asked = embedding(dimensions=2, truncate_prompt_tokens=-1)
    part = (await client.post(URL, json=asked)).json()["data"][0]["embedding"]
    assert part == pytest.approx([0.6, 0.8]) and math.hypot(*part) == pytest.approx(1)
    raw = (await client.post(URL, json=embedding(normalize=False))).json()["data"][0]["embedding"]
    assert raw == list(VECTOR)
    refused = await client.post(URL, json=embedding(dimensions=4))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "dimensions"


async def test_many_inputs_go_down_a_part_at_a_time(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = None
    task = asyncio.create_task(client.post(URL, json=embedding(input=["a"] * 2048)))
    most = 0
    for done in range(2048):
        stream, slot = await asyncio.wait_for(fake.arrivals.get(), 5)
        most = max(most, len(stream.requests))
        if done % 256 == 255:  # all that may be under way
            await asyncio.sleep(0.01)
            assert fake.arrivals.empty() and len(stream.requests) == 256
            for one in list(stream.requests):
                embed(stream, one)
    reply = (await task).json()
    assert [row["index"] for row in reply["data"]] == list(range(2048)) and most <= 256


async def test_inputs_that_have_not_begun_survive_a_tokenizer(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = None
    task = asyncio.create_task(client.post(URL, json=embedding(input=["a"] * 300)))
    for _ in range(256):
        stream, slot = await asyncio.wait_for(fake.arrivals.get(), 5)
    for one in list(stream.requests)[:100]:
        embed(stream, one)
    fake.script = embed
    stream.break_off()
    reply = await asyncio.wait_for(task, 10)
    assert reply.status_code == 200 and len(reply.json()["data"]) == 300


async def test_every_input_goes_down_the_line(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = embed
    for given, pooling in (([[1, 2], [3]], "mean"), ([7, 8], None), ("hi", "last")):
        body = embedding(input=given, **({"pooling": pooling} if pooling else {}))
        assert (await client.post(URL, json=body)).status_code == 200
    seen = list(fake.streams[-1].requests_seen.values())
    assert all(request.limits.kind == EMBED for request in seen)
    assert [request.limits.pooling for request in seen] == [MEAN, MEAN, LAST, LAST]
    ids = [struct.unpack(f"<{len(c) // 4}I", c) for c in (r.prompt_token_ids for r in seen[:3])]
    assert ids == [(1, 2), (3,), (7, 8)] and seen[3].prompt == "hi"


async def test_an_engine_that_sends_no_vector_is_our_failure(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    reply = await client.post(URL, json=embedding())
    assert reply.status_code == 500
