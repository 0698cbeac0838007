"""Questions to all engines: each is in the answer, with what it says or what became of it."""

from __future__ import annotations

import asyncio
import json

from protos.common_pb2 import Limits, Query, QueryAnswer
from tests.support.fake_engine import FakeLink, ready_state
from tests.tokenizer_service.stage import Build, request, until
from tokenizer_service.placement import EngineSeats
from tokenizer_service.questions import Questions

QUERY = Query(query_id=7, kind="explain", body_json=b'{"a": 1}')


def seats(*names: str) -> tuple[EngineSeats, list[FakeLink]]:
    found, links = EngineSeats(), [FakeLink(f"{name}:1", ready_state(name)) for name in names]
    for link in links:
        found.attach(link)
    return found, links


async def test_each_engine_answers_for_itself() -> None:
    attached, (one, other) = seats("one", "other")
    questions = Questions(attached)
    asking = asyncio.create_task(questions.ask(QUERY))
    await asyncio.sleep(0)
    for link, body in ((other, b"2"), (one, b"1")):
        (asked,) = link.queries
        assert (asked.kind, asked.body_json) == (QUERY.kind, QUERY.body_json)
        questions.answered(link, QueryAnswer(query_id=asked.query_id, body_json=body))
    told = [(a.engine, a.answer.query_id, a.answer.body_json) for a in (await asking).answers]
    assert told == [("one", 7, b"1"), ("other", 7, b"2")]


async def test_the_dead_the_silent_and_the_unreachable_are_named() -> None:
    attached, (dead, silent) = seats("dead", "silent")
    questions = Questions(attached, timeout_s=0.02)
    asking = asyncio.create_task(questions.ask(QUERY, ["host:9"]))
    await asyncio.sleep(0)
    questions.lost(dead)
    told = {a.engine: a.answer.error.kind for a in (await asking).answers}
    assert told == {"dead": "Unavailable", "silent": "DeadlineExceeded", "host:9": "Unavailable"}
    assert not questions._waiting
    questions.answered(silent, QueryAnswer(query_id=silent.queries[0].query_id))  # too late


async def test_a_question_does_not_wait_for_an_engine_that_is_lost(build: Build) -> None:
    stage = build()
    asking = asyncio.create_task(stage.pipeline.ask(QUERY, ()))
    await until(lambda: bool(stage.link.queries))
    stage.pipeline.detach_engine(stage.link)
    (told,) = (await asking).answers
    assert told.answer.error.kind == "Unavailable"


async def test_nobody_to_ask() -> None:
    assert not (await Questions(EngineSeats()).ask(QUERY)).answers


def test_who_is_looked_for_is_told_while_nobody_is_there() -> None:
    assert EngineSeats().reasons() == ["no engine connected"]
    seats = EngineSeats(sought="engine:7200")
    assert seats.reasons() == ["no engine connected (engine:7200)"]


async def test_this_tier_answers_for_requests_that_no_engine_has(build: Build) -> None:
    stage = build(with_engine=False)
    task = stage.pipeline.submit(stage.session, request(3, limits=Limits(tenant="t", n=2)))
    body = json.dumps({"request_id": "r3", "tenant": "t"}).encode()
    query = Query(query_id=1, kind="request_state", body_json=body)
    (told,) = (await stage.pipeline.ask(query, ())).answers
    states = [(c["choice"], c["state"]) for c in json.loads(told.answer.body_json)["choices"]]
    assert told.engine == "tokenizer" and states == [(0, "opening"), (1, "opening")]
    other = Query(kind="request_state", body_json=b'{"request_id": "r3", "tenant": "u"}')
    assert not (await stage.pipeline.ask(other, ())).answers
    stage.pipeline.attach_engine(stage.link)
    await task
    stage.pipeline.detach_engine(stage.link)
    (told,) = (await stage.pipeline.ask(query, ())).answers
    assert b"replaying" in told.answer.body_json


def test_two_engines_of_one_name_are_told_apart() -> None:
    """Of two hosts of one image one had lost its worker: /ready said so for both."""
    attached = EngineSeats()
    one, other = (FakeLink(f"10.0.0.{k}:7200", ready_state("host:7200")) for k in (1, 2))
    for link in (one, other):
        attached.attach(link)
        attached.told(link)
    assert [one.state.engine, other.state.engine] == ["host:7200", "host:7200 at 10.0.0.2:7200"]
    attached.detach(one)
    other.state = ready_state("host:7200")
    attached.told(other)
    assert other.state.engine == "host:7200 at 10.0.0.2:7200", "a name is kept"
