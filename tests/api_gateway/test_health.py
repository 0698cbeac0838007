from __future__ import annotations

import asyncio

import pytest

from api_gateway.admission import Admission
from api_gateway.clients import TextClients
from api_gateway.health import Health
from protos.common_pb2 import EngineState
from tests.api_gateway.conftest import in_process, running, until
from tests.support.fake_tokenizer import FakeTokenizer


class Line(TextClients):
    """A line whose state the test sets; heard at second 10."""

    def __init__(self, *states: EngineState) -> None:
        super().__init__("t:1")
        self.found = {state.engine: (state, 10.0) for state in states}

    def links(self) -> list:  # type: ignore[type-arg]
        return [object()]

    def states(self) -> dict[str, tuple[EngineState, float]]:
        return self.found


def reasons(now: float, *states: EngineState) -> list[str]:
    return Health(Line(*states), Admission(1), clock=lambda: now).reasons()


def engines(heard: dict[str, tuple[EngineState, float]], now: float) -> list[str]:
    line = Line()
    line.found = heard
    return [engine["engine"] for engine in Health(line, Admission(1), clock=lambda: now).engines()]


READY = EngineState(engine="a", ready=True)
LOADING = EngineState(engine="b", reasons=["loading weights"])


@pytest.mark.parametrize(
    "now, states, expected",
    [
        (10.0, [READY], []),
        (11.4, [READY], []),
        (11.6, [READY], ["engine a: not heard of for 1.6 s"]),
        (10.0, [LOADING], ["engine b: loading weights"]),
        (10.0, [LOADING, READY], []),
        (12.0, [LOADING, READY], 2),
        (10.0, [EngineState(engine="c")], ["engine c: not ready"]),
        (10.0, [], ["no engine has been heard of"]),
    ],
)
def test_ready_means_heard_of_lately(
    now: float, states: list[EngineState], expected: list[str] | int
) -> None:
    found = reasons(now, *states)
    assert found == expected or len(found) == expected


def test_engines_that_went_are_forgotten() -> None:
    none = EngineState(engine="none", reasons=["no engine connected"])
    heard = {"a": (READY, 100.0), "old": (READY, 60.0), "none": (none, 99.5)}
    assert engines(heard, 100.0) == ["a"]
    assert engines(heard, 110.0) == ["a"], "silence of the last one is told"
    assert engines({"a": (READY, 95.0), "none": (none, 100.0)}, 100.0) == ["a", "none"]
    assert engines({"a": (READY, 60.0), "none": (none, 100.0)}, 100.0) == ["none"]


async def test_one_tokenizer_that_reaches_the_engine_is_enough(fake: FakeTokenizer) -> None:
    """Whichever of them speaks last."""
    blind = await FakeTokenizer().start()
    blind.is_ready = False
    async with running(f"{fake.address},{blind.address}") as gateway:
        await until(lambda: len(gateway.clients.links()) == 2)
        await until(lambda: all(link.states for link in gateway.clients.links()))
        for speaker in (fake, blind, fake, blind):
            said = len(gateway.clients.states())
            speaker.streams[0].state(ready=speaker is fake)
            await asyncio.sleep(0.01)
            assert said == 1 and gateway.health.reasons() == []
        (seen,) = (link for link in gateway.clients.links() if link.address == fake.address)
        engine, (state, heard_s) = seen.states.popitem()
        seen.states[engine] = (state, heard_s - 10)
        assert gateway.health.reasons() != [], "its word is old"
    await blind.stop()


async def test_ready_follows_the_line(fake: FakeTokenizer) -> None:
    fake.is_ready = False
    async with running(fake.address) as gateway, in_process(gateway) as http:
        early = await http.get("/ready")
        assert early.status_code == 503
        assert early.json()["reasons"] == [f"no tokenizer is connected ({fake.address})"]
        assert (await http.get("/live")).json() == {"status": "live"}
        await until(lambda: bool(gateway.clients.states()))
        assert (await http.get("/health")).status_code == 503
        fake.streams[0].state(ready=True)
        await until(lambda: not gateway.health.reasons())
        ready = await http.get("/ready")
        assert ready.status_code == 200 and ready.json()["status"] == "ready"
        assert ready.json()["engines"][0]["fingerprint"] == "fp"
        gateway.admission.is_draining = True
        drains = await http.get("/health")
        assert drains.status_code == 503
        assert drains.json()["reasons"] == ["the gateway is shutting down"]
        version = (await http.get("/version")).json()
        assert version["service"] == "millrace" and version["version"]
