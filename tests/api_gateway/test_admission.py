from __future__ import annotations

import asyncio

import pytest

from api_gateway.admission import Admission
from common.errors import Overloaded, Unavailable
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat
from tests.support.fake_tokenizer import FakeTokenizer


def test_places_are_counted_and_given_back() -> None:
    admission = Admission(1)
    with pytest.raises(ZeroDivisionError), admission.enter():
        assert admission.num_active == 1
        with pytest.raises(Overloaded), admission.enter():
            raise AssertionError
        raise ZeroDivisionError
    assert admission.num_active == 0
    admission.is_draining = True
    with pytest.raises(Unavailable), admission.enter():
        raise AssertionError


def test_retry_after_follows_the_pace_of_the_ends() -> None:
    now = [0.0]
    admission = Admission(1, clock=lambda: now[0])
    for _ in range(100):
        with admission.enter():
            now[0] += 8.0
    with admission.enter(), pytest.raises(Overloaded) as full, admission.enter():
        raise AssertionError
    assert full.value.retry_after_s == pytest.approx(8.0, abs=0.1)


def test_a_quiet_hour_is_no_slow_pace() -> None:
    now = [0.0]
    admission = Admission(1, clock=lambda: now[0])
    for pause_s in (0.0, 3600.0, 3600.0):
        now[0] += pause_s
        with admission.enter():
            now[0] += 1.0
    with admission.enter(), pytest.raises(Overloaded) as full, admission.enter():
        raise AssertionError
    assert full.value.retry_after_s == pytest.approx(1.0)


async def test_ready_says_no_before_requests_are_refused(fake: FakeTokenizer) -> None:
    async with running(fake.address) as gateway:
        await until(lambda: not gateway.health.reasons())
        left = asyncio.Event()
        gateway.drain(left.set)
        assert gateway.health.reasons() == ["the gateway is shutting down"]
        with gateway.admission.enter():
            pass
        await asyncio.wait_for(left.wait(), 10)
        with pytest.raises(Unavailable), gateway.admission.enter():
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
