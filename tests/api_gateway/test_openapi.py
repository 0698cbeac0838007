"""The OpenAPI document is true: made-up calls of every operation find no 5xx and no other shape."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api_gateway.app import routes
from api_gateway.openapi import OPERATIONS, document
from protos.common_pb2 import EMBED
from tests.api_gateway.conftest import serving
from tests.support.fake_tokenizer import FakeTokenizer, Stream, echo

UNDOCUMENTED = {"/ui/{id}"}  # the parts of the page
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
QUERIES: dict[str, dict[str, Any]] = {
    "request_state": {"e0": {"choices": [{"choice": 0, "state": "RUNNING"}]}},
    "explain": {"e0": {"cached_tokens": 0}},
    "cache_statistics": {"e0": {"hits": 1}},
    "cache_reset": {"e0": {"forgotten_blocks": 1}},
}


def test_every_route_is_in_the_document() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            return self

        def __call__(self, *given: Any) -> None: ...

    table = routes(Anything())  # type: ignore[arg-type]
    shown = {(r.method, r.path) for r in table if r.path not in UNDOCUMENTED}
    assert shown == set(OPERATIONS)
    assert all(r.is_public == OPERATIONS[r.method, r.path].is_public
               for r in table if r.path not in UNDOCUMENTED)  # fmt: skip


async def test_the_document_is_served_and_valid(client: httpx.AsyncClient) -> None:
    served = (await client.get("/openapi.json")).json()
    assert served == document() and served["openapi"] == "3.1.0"
    for shape in served["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(shape)


@pytest.mark.parametrize(
    ("cls", "given", "is_valid"),
    [
        ("ResponseRequest", [{"role": "user", "content": "hi"}], True),
        ("ResponseRequest", ["hi"], False),
        ("ResponseRequest", [], False),
        ("EmbeddingRequest", ["hi"], True),
        ("EmbeddingRequest", [{"role": "user", "content": "hi"}], False),
    ],
)
def test_inputs_of_two_kinds(cls: str, given: list[Any], is_valid: bool) -> None:
    described = document()
    check = jsonschema.Draft202012Validator({**described, "$ref": f"#/components/schemas/{cls}"})
    assert check.is_valid({"model": "m", "input": given}) is is_valid


def answer(stream: Stream, slot: int) -> None:
    if stream.requests[slot].limits.kind == EMBED:
        stream.start(slot)
        stream.bulk(slot, embedding=bytes.fromhex("0000803f") * 8)
        stream.finish(slot, num_output_tokens=0)
    else:
        echo()(stream, slot)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway on a port, before a fake tokenizer, in a thread of its own."""
    started, ended = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        fake = await FakeTokenizer(answer).start()
        fake.answers = QUERIES
        async with serving(fake.address) as (_, address):
            found.append(address)
            started.set()
            while not ended.is_set():
                fake.streams[-1].state()
                await asyncio.sleep(0.3)
        await fake.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    yield found[0]
    ended.set()
    thread.join()


FOR_MODELS = (
    "ChatRequest", "CompletionRequest", "EmbeddingRequest", "ResponseRequest", "MessagesRequest",
)  # fmt: skip


def try_all(url: str, max_examples: int) -> None:
    described = document()
    model = described["components"]["schemas"]
    for cls in FOR_MODELS:
        model[cls]["properties"]["model"]["enum"] = ["fake-model", "other"]  # or all would be 404
    schema = schemathesis.openapi.from_dict(described)
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=max_examples, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy())
        def run(case: Any) -> None:
            case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)

        run()


def test_made_up_calls_find_nothing(url: str) -> None:
    try_all(url, max_examples=5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_made_up_calls_find_nothing(url: str) -> None:
    try_all(url, max_examples=400)
