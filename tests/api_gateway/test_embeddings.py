"""Vectors: their forms, their length, their parts."""

from __future__ import annotations

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
    part = (await client.post(URL, json=embedding(dimensions=2))).json()["data"][0]["embedding"]
    assert part == pytest.approx([0.6, 0.8]) and math.hypot(*part) == pytest.approx(1)
    raw = (await client.post(URL, json=embedding(normalize=False))).json()["data"][0]["embedding"]
    assert raw == list(VECTOR)
    refused = await client.post(URL, json=embedding(dimensions=4))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "dimensions"


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
