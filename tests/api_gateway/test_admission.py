from __future__ import annotations

import asyncio
import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from api_gateway.admission import Admission
from api_gateway.asgi import Message
from common.errors import Overloaded, Unavailable
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat, completion
from tests.support.fake_tokenizer import FakeTokenizer


def test_places_are_counted_and_given_back() -> None:
    admission = Admission(1)
    with pytest.raises(ZeroDivisionError), admission.enter("a"):
        assert admission.num_active == 1
        with pytest.raises(Overloaded), admission.enter("a"):
            raise AssertionError
        raise ZeroDivisionError
    assert admission.num_active == 0
    admission.is_draining = True
    with pytest.raises(Unavailable), admission.enter("a"):
        raise AssertionError


def test_a_full_gateway_is_shared_by_tenants() -> None:
    """One alone may have all places; each of two then has a half, and of three a third."""
    admission, places = Admission(6), ExitStack()

    def num_let_in(tenant: str) -> int:
        for count in range(100):
            try:
                places.enter_context(admission.enter(tenant))
            except Overloaded as error:
                assert f"{count} of them yours" in error.message
                return count
        raise AssertionError

    with places:
        assert [num_let_in(tenant) for tenant in "abc"] == [6, 3, 2]
        with pytest.raises(Overloaded), admission.enter("a"):
            raise AssertionError
    assert admission.num_active == 0
    with ExitStack() as places:
        assert [num_let_in(tenant) for tenant in "ba"] == [6, 3], "who has gone has no part"


async def test_heads_without_bodies_shut_no_other_tenant_out(
    fake: FakeTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    digests = [hashlib.sha256(f"sk-{name}".encode()).hexdigest() for name in "ab"]
    path.write_text(f"{digests[0]} a\n{digests[1]} b\n")

    async def never() -> Message:
        return await asyncio.Future[Message]()

    async def unheard(message: Message) -> None:
        raise AssertionError(message)

    settings: dict[str, Any] = {"api_key_file": str(path), "max_concurrent_requests": 4}
    async with running(fake.address, **settings) as gateway, in_process(gateway) as http:
        app = gateway.app()
        head = {
            "type": "http", "method": "POST", "path": "/v1/completions",
            "headers": [(b"x-api-key", b"sk-a")],
        }  # fmt: skip
        flood = [asyncio.create_task(app(dict(head), never, unheard)) for _ in range(4)]
        await until(lambda: gateway.admission.num_active == 4)
        for key, status in (("sk-a", 429), ("sk-b", 200)):
            headers = {"x-api-key": key}
            reply = await http.post("/v1/completions", json=completion(), headers=headers)
            assert reply.status_code == status
        for each in flood:
            each.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


@pytest.mark.parametrize(("pace_s", "told_s"), [(8.0, 8.0), (0.01, 1.0), (900.0, 60.0)])
def test_retry_after_follows_the_pace_of_the_ends(pace_s: float, told_s: float) -> None:
    now = [0.0]
    admission = Admission(1, clock=lambda: now[0])
    for _ in range(100):
        with admission.enter("a"):
            now[0] += pace_s
    with admission.enter("a"), pytest.raises(Overloaded) as full, admission.enter("a"):
        raise AssertionError
    assert full.value.retry_after_s == pytest.approx(told_s, abs=0.1)


def test_a_quiet_hour_is_no_slow_pace() -> None:
    now = [0.0]
    admission = Admission(1, clock=lambda: now[0])
    for pause_s in (0.0, 3600.0, 3600.0):
        now[0] += pause_s
        with admission.enter("a"):
            now[0] += 1.0
    with admission.enter("a"), pytest.raises(Overloaded) as full, admission.enter("a"):
        raise AssertionError
    assert full.value.retry_after_s == pytest.approx(1.0)


async def test_ready_says_no_before_requests_are_refused(fake: FakeTokenizer) -> None:
    async with running(fake.address) as gateway:
        await until(lambda: not gateway.health.reasons())
        left = asyncio.Event()
        gateway.drain(left.set)
        assert gateway.health.reasons() == ["the gateway is shutting down"]
        with gateway.admission.enter("default"):
            pass
        await asyncio.wait_for(left.wait(), 10)
        await until(lambda: gateway.admission.is_draining)
        with pytest.raises(Unavailable), gateway.admission.enter("default"):
            raise AssertionError


async def test_too_many_at_once_are_429_and_come_back_later(fake: FakeTokenizer) -> None:
    fake.script = None
    async with (
        running(fake.address, max_concurrent_requests=1) as gateway,
        in_process(gateway) as http,
    ):
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat()))
        stream, slot = await fake.arrivals.get()
        refused = await http.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert (await http.get("/v1/models")).status_code == 200
        stream.finish(slot)
        assert (await asked).status_code == 200
