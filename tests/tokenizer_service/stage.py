"""A recording gateway, a scripted engine, and the text tier between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protos.common_pb2 import EngineState, Finish, FinishReason
from protos.tokenizer_pb2 import TextBatch, TextBulk, TextRequest
from tests.support.fake_engine import FakeLink, finish, ids_of, token_batch
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.text_model import TextModel


@dataclass
class Gateway:
    """Collects what a gateway would see, and checks the order of every slot's columns."""

    batches: list[TextBatch] = field(default_factory=list)
    texts: dict[int, bytes] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, Finish] = field(default_factory=dict)
    thoughts: dict[int, str] = field(default_factory=dict)
    """Text of the reasoning channel, of slots that have any; `texts` is of both."""
    bulks: list[TextBulk] = field(default_factory=list)

    def __call__(self, batch: TextBatch) -> None:
        self.batches.append(batch)
        counts, tokens = ids_of(batch.counts), iter(ids_of(batch.token_ids))
        channels = ids_of(batch.channels) or [0] * len(counts)
        for slot, text, at, count, index, channel in zip(
            ids_of(batch.slots), batch.texts, ids_of(batch.text_offsets), counts,
            ids_of(batch.token_offsets), channels, strict=True,
        ):  # fmt: skip
            assert slot not in self.finishes
            assert at == len(self.texts.setdefault(slot, b""))
            assert index == len(self.token_ids.setdefault(slot, []))
            self.texts[slot] += text.encode()
            if channel:
                self.thoughts[slot] = self.thoughts.get(slot, "") + text
            self.token_ids[slot] += [next(tokens) for _ in range(count)]
        for end in batch.finishes:
            assert end.slot not in self.finishes, "two ends"
            self.finishes[end.slot] = end

    def take(self, bulk: TextBulk) -> None:
        assert bulk.slot not in self.finishes, "a bulk after the end"
        self.bulks.append(bulk)

    def answer(self, slot: int) -> str:
        return self.texts[slot].decode().removeprefix(self.thoughts.get(slot, ""))

    @property
    def started(self) -> list[int]:
        return [started.slot for batch in self.batches for started in batch.started]


@dataclass
class Stage:
    pipeline: TextPipeline
    model: TextModel
    gateway: Gateway
    session: int
    link: FakeLink
    states: list[EngineState]

    async def submit(self, slot: int = 0, **fields: Any) -> None:
        await self.pipeline.submit(self.session, request(slot, **fields))

    def step(self, *entries: tuple[int, int, str | list[int]], **rest: Any) -> None:
        rows = [(s, at, list(t.encode()) if isinstance(t, str) else t) for s, at, t in entries]
        self.pipeline.on_tokens(self.link, token_batch(rows, **rest))

    def end(self, slot: int, reason: FinishReason, count: int = 0, **rest: Any) -> None:
        self.step(finishes=[finish(slot, reason, count, **rest)])

    @property
    def eos(self) -> int:
        (eos,) = self.model.completion.eos_token_ids
        return eos


def request(slot: int = 0, **fields: Any) -> TextRequest:
    given: dict[str, Any] = {"model": "tiny", "request_id": f"r{slot}", "slot": slot}
    if not {"chat", "prompt_token_ids"} & fields.keys():
        given["prompt"] = "Hello world"
    return TextRequest(**(given | fields))


Build = Callable[..., Stage]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds; the test's own timeout is the bound."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
