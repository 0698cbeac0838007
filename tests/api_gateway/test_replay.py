"""A tokenizer may die in mid-stream: the client sees one stream without gap or duplicate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from api_gateway import clients
from api_gateway.__main__ import Gateway
from common import peers
from protos import limits
from protos.common_pb2 import LENGTH, ModelInfo, Timings
from protos.tokenizer_pb2 import TextBatch
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat, completion, events, text_of
from tests.support.fake_tokenizer import FakeTokenizer, Stream, column, echo

WORDS = "zero öne two thrée four five"


@pytest.fixture
async def pair() -> AsyncIterator[tuple[FakeTokenizer, FakeTokenizer]]:
    first, second = await FakeTokenizer().start(), await FakeTokenizer(echo(WORDS)).start()
    yield first, second
    await first.stop()
    await second.stop()


def tell(stream: Stream, slot: int, num_words: int) -> None:
    stream.start(slot)
    for index, word in enumerate(WORDS.split(" ")[:num_words]):
        stream.token(slot, word if index == 0 else f" {word}")


@pytest.mark.parametrize("num_words", range(7))
async def test_a_stream_goes_on_where_it_was(fake: FakeTokenizer, num_words: int) -> None:
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        body = completion(stream=True, seed=7)
        asked = asyncio.create_task(http.post("/v1/completions", json=body))
        stream, slot = await fake.arrivals.get()
        tell(stream, slot, num_words)
        stream.break_off()
        fake.script = echo(WORDS)
        shown = events((await asked).text)
        told = (await http.get("/metrics")).text
    assert text_of(shown) == WORDS
    assert "millrace_gateway_replays_total 1.0" in told
    first, again = stream.requests_seen[slot], fake.streams[1].requests_seen[1]
    assert (first.attempt, again.attempt) == (0, 1)
    assert again.sampling == first.sampling and again.limits.first_choice == 0
    assert (first.model_hash, again.model_hash) == ("", "m" if num_words else "")
    assert again.resumed[0].token_ids == column(*range(100, 100 + num_words))
    assert again.resumed[0].text_bytes == len(" ".join(WORDS.split(" ")[:num_words]).encode())


async def test_the_rate_of_a_replayed_answer_counts_all_its_time(fake: FakeTokenizer) -> None:
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion(n=2)))
        (stream, one), (_, two) = await fake.arrivals.get(), await fake.arrivals.get()
        tell(stream, one, 3)
        stream.finish(one, LENGTH)  # 4 ms, its engine says
        tell(stream, two, 3)
        await asyncio.sleep(0.2)
        stream.token(two, " four")
        stream.finish(two, LENGTH, timings=Timings(queue_s=0.001, prefill_s=0.002))
        timings = (await asked).json()["timings"]
    assert 150 < timings["decode_ms"] < 2000
    assert timings["tokens_per_s"] == pytest.approx(7000 / timings["decode_ms"], rel=0.01)


async def test_another_tokenizer_takes_over_all_choices(
    pair: tuple[FakeTokenizer, FakeTokenizer],
) -> None:
    first, second = pair
    async with running(f"{first.address},{second.address}") as gateway, in_process(gateway) as http:
        await until(lambda: len(gateway.clients.links()) == 2)
        await keep_off(gateway, second)
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat(n=2)))
        (stream, one), (_, two) = await first.arrivals.get(), await first.arrivals.get()
        tell(stream, one, 6)
        stream.finish(one)
        tell(stream, two, 2)
        await until(lambda: stream.outbox.empty())
        await first.stop()
        await until(lambda: len(gateway.clients.links()) == 1)
        assert len(second.streams[0].requests_seen) == 0, "may have died with it"
        second.streams[0].state(ready=True)
        reply = (await asked).json()
    assert [c["message"]["content"] for c in reply["choices"]] == [WORDS, WORDS]
    assert reply["usage"]["completion_tokens"] == 12
    taken = list(second.streams[0].requests_seen.values())
    assert len(taken) == 1 and taken[0].limits.first_choice == 1 and taken[0].limits.n == 1
    assert taken[0].model_hash == "m"


async def test_a_model_whose_only_tokenizer_is_gone_is_to_be_asked_for_again(
    pair: tuple[FakeTokenizer, FakeTokenizer],
) -> None:
    first, second = pair
    second.info = ModelInfo(id="other", max_model_len=4096)
    async with running(f"{first.address},{second.address}") as gateway, in_process(gateway) as http:
        await until(lambda: len(gateway.clients.links()) == 2)
        await second.stop()
        await until(lambda: len(gateway.clients.links()) == 1)
        gone = await http.post("/v1/chat/completions", json=chat(model="other"))
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "no_tokenizer")
        assert gone.headers["retry-after"] == "1"
        never = await http.post("/v1/chat/completions", json=chat(model="never"))
        assert (never.status_code, never.json()["error"]["code"]) == (404, "model_not_found")


async def keep_off(gateway: Gateway, fake: FakeTokenizer) -> None:
    """Make the other tokenizer the less loaded one."""
    link = next(link for link in gateway.clients.links() if link.address == fake.address)
    await until(lambda: bool(link.states))  # told once, right behind the opening
    link.states.clear()


async def test_a_tokenizer_that_says_nothing_any_more_counts_as_lost(
    fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads may answer gRPC's pings while its event loop hangs."""
    monkeypatch.setattr(peers, "SILENT_AFTER_S", 0.5)
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion(stream=True)))
        stream, slot = await fake.arrivals.get()
        tell(stream, slot, 3)
        fake.script = echo(WORDS)
        assert text_of(events((await asked).text)) == WORDS
        assert len(fake.streams) > 1


async def test_three_losses_end_a_request(fake: FakeTokenizer) -> None:
    def die(stream: Stream, slot: int) -> None:
        stream.break_off()

    fake.script = die
    async with running(fake.address) as gateway, in_process(gateway) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "attempts_exhausted"
        assert len(fake.streams) >= 3
        fake.script = echo()
        assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_tokenizers_that_die_together_cost_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "AFTERMATH_S", 0.2)
    fakes = [await FakeTokenizer(None).start() for _ in range(4)]
    addresses = ",".join(fake.address for fake in fakes)
    async with running(addresses) as gateway, in_process(gateway) as http:
        await until(lambda: len(gateway.clients.links()) == 4)
        asked = asyncio.create_task(http.post("/v1/completions", json=completion()))
        await until(lambda: any(link.jobs for link in gateway.clients.links()))
        (busy,) = (link.address for link in gateway.clients.links() if link.jobs)
        fakes.sort(key=lambda fake: fake.address != busy)
        for fake in fakes[:3]:  # one after the other, as their ends are noticed
            await fake.stop()
        last = fakes[3]
        last.script = echo(WORDS)
        await until(lambda: len(gateway.clients.links()) == 1)
        await asyncio.sleep(0.2)
        assert not last.streams[0].requests_seen, "it has not spoken since"
        last.streams[0].state(ready=True)
        assert (await asked).json()["choices"][0]["text"] == WORDS
        assert [one.attempt for one in last.streams[0].requests_seen.values()] == [1]
    await last.stop()


async def test_who_only_waits_outlives_any_number_of_tokenizers(
    fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a tokenizer has had for long while it spoke did not kill it, and is not blamed."""
    monkeypatch.setattr(limits, "PROOF_S", 0.02)
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion()))
        for _ in range(5):
            stream, slot = await fake.arrivals.get()
            await asyncio.sleep(0.05)
            stream.state(ready=True)
            await asyncio.sleep(0.05)
            stream.break_off()
        stream, slot = await fake.arrivals.get()
        assert stream.requests_seen[slot].attempt == 1
        echo(WORDS)(stream, slot)
        assert (await asked).json()["choices"][0]["text"] == WORDS


async def test_a_gap_is_replayed_and_a_duplicate_dropped(fake: FakeTokenizer) -> None:
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion()))
        stream, slot = await fake.arrivals.get()
        tell(stream, slot, 2)
        stream.text_bytes[slot], stream.num_tokens[slot] = 0, 0
        tell(stream, slot, 3)  # the first two come twice
        stream.num_tokens[slot] += 1
        stream.token(slot, "lost: its forerunner never came")
        fake.script = echo(WORDS)
        reply = (await asked).json()
        assert await fake.aborts.get() == slot
    assert reply["choices"][0]["text"] == WORDS
    assert reply["usage"]["completion_tokens"] == 6


async def test_news_of_dead_slots_is_dropped(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def twice(stream: Stream, slot: int) -> None:
        echo()(stream, slot)
        stream.text_bytes[slot] = stream.num_tokens[slot] = 0
        echo("late words")(stream, slot)
        stream.token(slot + 1000, "nobody's")

    fake.script = twice
    for _ in range(2):
        reply = await client.post("/v1/completions", json=completion())
        assert reply.json()["choices"][0]["text"] == "Hello there, wörld"


async def test_a_ragged_batch_costs_the_stream_not_the_request(fake: FakeTokenizer) -> None:
    from protos.tokenizer_pb2 import TextBatch

    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion()))
        stream, slot = await fake.arrivals.get()
        fake.script = echo(WORDS)
        stream.say(TextBatch(slots=column(slot), texts=["a", "b"]))
        assert (await asked).json()["choices"][0]["text"] == WORDS
    assert len(fake.streams) == 2


async def test_nobody_there_is_503_and_says_when_to_come_back(
    free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "WAIT_TIMEOUT_S", 0.05)
    async with running(free_address) as gateway, in_process(gateway) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        assert reply.json()["error"]["code"] == "no_tokenizer"


async def test_a_request_waits_for_a_tokenizer_that_is_about_to_come(free_address: str) -> None:
    async with running(free_address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion()))
        await until(lambda: gateway.admission.num_active == 1)
        fake = await FakeTokenizer(echo()).start(int(free_address.rpartition(":")[2]))
        assert (await asked).status_code == 200
        await fake.stop()


async def test_one_loss_is_one_attempt_however_many_choices_miss_it(fake: FakeTokenizer) -> None:
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        asked = asyncio.create_task(http.post("/v1/completions", json=completion(n=4)))
        slots = []
        for _ in range(4):
            stream, slot = await fake.arrivals.get()
            slots.append(slot)
        fake.script = echo(WORDS)
        none, first = column(0, 0, 0, 0), column(1, 1, 1, 1)
        stream.say(TextBatch(
            slots=column(*slots), text_offsets=none, texts=["late"] * 4, counts=first,
            token_offsets=first, token_ids=column(5, 6, 7, 8),
        ))  # fmt: skip
        reply = await asked
    assert [choice["text"] for choice in reply.json()["choices"]] == [WORDS] * 4


@pytest.mark.parametrize("is_stream", [False, True])
async def test_who_waits_for_an_engine_is_told_which_one_it_was(
    fake: FakeTokenizer, is_stream: bool
) -> None:
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        await until(lambda: bool(gateway.clients.links()))
        await keep_off(gateway, fake)
        body = completion(stream=is_stream)
        asked = asyncio.create_task(http.post("/v1/completions", json=body))
        stream, slot = await fake.arrivals.get()
        stream.state(ready=True)
        echo(WORDS)(stream, slot)
        reply = await asked
        shown = events(reply.text) if is_stream else [reply.json()]
        assert {chunk["system_fingerprint"] for chunk in shown} == {"fp"}
        (link,) = gateway.clients.links()
        link.states.clear()
        assert gateway.clients.fingerprint() == "fp", "its engine may be gone by the end"
