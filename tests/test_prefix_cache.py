"""KV memory over real arithmetic: what is found, shared or shifted answers bit for bit as computed.

The real scheduler, loop and runner on small models, without text and without sockets.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.prefix_cache import model_key
from engine_core.scheduling.request import FinishReason
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.sequence import TokenEvent
from protos.common_pb2 import SamplingParams
from protos.worker import Add, Finished, Limits
from tests.support.model_folders import write_folder
from worker.build import LoadedModel, load_model

SHARED = [(7 * i) % 61 for i in range(40)]
PROMPTS = [
    SHARED + [1, 2, 3],
    SHARED + [1, 2, 3] + [(5 * i) % 59 for i in range(40)],
    SHARED[:32],
    SHARED + [9],
    SHARED[:16] + [4, 4],
    SHARED + [1, 2, 3],
]
NUM_NEW = 20


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    end: Finished | None = None

    def take(self, event: TokenEvent) -> None:
        self.token_ids += event.token_ids
        self.logprobs += [(row.token_ids, row.logprobs) for row in event.logprobs]
        self.end = event.finish or self.end


class Engine:
    """One scheduler and one runner; `depth` plans are in flight."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        has_cache: bool = True,
        num_blocks: int = 64,
        max_num_batched_tokens: int = 64,
        depth: int = 1,
        max_model_len: int = 256,
    ) -> None:
        """`num_blocks` are those of 16 tokens, whatever the layout."""
        num_blocks = num_blocks * 16 // model.block_size
        self.runner = model.runner(num_blocks)
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=model.block_size,
            vocab_size=model.config.vocab_size,
            max_model_len=max_model_len,
            bounds=Bounds(8, max_num_batched_tokens, 64),
            prefix_key=model_key(model.facts(1 << 20)) if has_cache else None,
            layout=model.layout,
        )
        self.depth = depth
        self.slots = itertools.count()

    def ask(
        self,
        *prompts: list[int],
        tenant: str = "",
        n: int = 1,
        first_choice: int = 0,
        n_keep: int | None = None,
    ) -> list[Answer]:
        """Run these prompts together; return their answers, n for each."""
        answers: dict[int, Answer] = {}
        for prompt in prompts:
            slot = next(self.slots)
            for _ in range(n - 1):
                next(self.slots)
            sampling = SamplingParams(seed=len(prompt), temperature=1.0, top_p=0.9)
            limits = Limits(
                NUM_NEW, n=n, logprobs=3, tenant=tenant, first_choice=first_choice, n_keep=n_keep
            )
            body = array("I", prompt).tobytes()
            add = Add(1, slot, "r", body, limits, sampling.SerializeToString())
            self.scheduler.add(add, 0.0)
            answers |= {slot + choice: Answer() for choice in range(n)}
        for event in self.events():
            answers[event.slot].take(event)
        assert self.scheduler.check() == ""
        for answer in answers.values():
            assert answer.end is not None and answer.end.reason == FinishReason.LENGTH
        return list(answers.values())

    def events(self) -> Iterator[TokenEvent]:
        results = deque([])
        while True:
            while len(results) < self.depth:
                plan = self.scheduler.schedule(0.0)
                if plan is None:
                    break
                results.append(self.runner.execute(plan))
            if not results:
                return
            yield from self.scheduler.apply(results.popleft(), 0.0)


def same(got: list[Answer], expected: list[Answer]) -> bool:
    """Return whether ids and logprobs are equal, bit for bit."""
    return [(a.token_ids, a.logprobs) for a in got] == [(b.token_ids, b.logprobs) for b in expected]


def num_cached(answers: list[Answer]) -> list[int]:
    return [answer.end.num_cached_tokens for answer in answers if answer.end is not None]


@cache
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, num_threads=1)


@pytest.fixture(scope="module", params=["made", "qwen2-tied-f32", "qwen2-gqa7-f16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    if request.param == "made":
        return loaded(write_folder(tmp_path_factory.mktemp("models") / "tiny"))
    reference_data: Path = request.getfixturevalue("reference_data")
    return loaded(reference_data / "golden" / request.param)


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[Answer]:
    """Every prompt by itself, in an engine that remembers nothing."""
    return [Engine(model, has_cache=False).ask(prompt)[0] for prompt in PROMPTS]


def test_hits_answer_as_misses(model: LoadedModel, expected: list[Answer]) -> None:
    engine = Engine(model)
    cold = [engine.ask(prompt)[0] for prompt in PROMPTS]
    warm = [engine.ask(prompt)[0] for prompt in PROMPTS]
    assert num_cached(cold) == [0, 32, 16, 32, 16, 32]
    assert num_cached(warm) == [32, 80, 16, 32, 16, 32]
    assert same(cold, expected) and same(warm, expected)
    assert engine.scheduler.tally.num_prefix_hits == sum(num_cached(cold) + num_cached(warm))
    assert engine.scheduler.tally.num_prefix_queries == 2 * sum(map(len, PROMPTS))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_num_batched_tokens", [9, 64])
def test_chunks_and_plans_ahead_do_not_matter(
    model: LoadedModel, expected: list[Answer], depth: int, max_num_batched_tokens: int
) -> None:
    engine = Engine(model, max_num_batched_tokens=max_num_batched_tokens, depth=depth)
    for _ in range(2):
        assert same(engine.ask(*PROMPTS), expected)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("has_cache", [False, True])
def test_preemption_does_not_matter(
    model: LoadedModel, expected: list[Answer], has_cache: bool, depth: int
) -> None:
    engine = Engine(model, num_blocks=10, has_cache=has_cache, depth=depth)
    for _ in range(2):
        assert same(engine.ask(*PROMPTS), expected)
    assert engine.scheduler.tally.num_preemptions > 0


def test_an_answer_is_found_when_it_becomes_a_prompt(model: LoadedModel) -> None:
    engine = Engine(model)
    (first,) = engine.ask(SHARED)
    again = SHARED + first.token_ids + [5]
    (second,) = engine.ask(again)
    assert num_cached([second]) == [48]
    assert same([second], Engine(model, has_cache=False).ask(again))


def test_tenants_find_nothing_of_each_other(model: LoadedModel, expected: list[Answer]) -> None:
    engine = Engine(model)
    for tenant in ("a", "b"):
        (answer,) = engine.ask(PROMPTS[1], tenant=tenant)
        assert num_cached([answer]) == [0] and same([answer], expected[1:2])
    assert engine.scheduler.tally.num_prefix_hits == 0
    assert num_cached(engine.ask(PROMPTS[1], tenant="a")) == [80]


CHOSEN = [SHARED, SHARED + [1, 2, 3], SHARED[:33]]


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[Answer]:
    """Three choices of each of these prompts, every one asked by itself."""
    answers = [
        Engine(model, has_cache=False).ask(prompt, first_choice=choice)[0]
        for prompt in CHOSEN
        for choice in range(3)
    ]
    assert answers[0].token_ids != answers[1].token_ids != answers[2].token_ids
    return answers


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize("num_blocks", [10, 64])
def test_choices_that_share_their_prompt_answer_as_alone(
    model: LoadedModel, alone: list[Answer], has_cache: bool, num_blocks: int, depth: int
) -> None:
    """A fork starts from copied pages; its answer is that of a request for that choice alone."""
    engine = Engine(model, num_blocks=num_blocks, has_cache=has_cache, depth=depth)
    assert same(engine.ask(*CHOSEN, n=3), alone)
    if num_blocks == 64 and not has_cache:
        computed = sum(map(len, CHOSEN)) + 2 * len(CHOSEN)
        assert engine.scheduler.tally.num_prefill_tokens == computed


# ── layouts ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("max_num_batched_tokens", [9, 64])
@pytest.mark.parametrize("layout", ["slot", "static"])
def test_every_layout_answers_as_blocks_do(
    model: LoadedModel, expected: list[Answer], layout: str, max_num_batched_tokens: int
) -> None:
    engine = Engine(
        replace(model, layout=layout), max_num_batched_tokens=max_num_batched_tokens, depth=2
    )
    for _ in range(2):
        assert same(engine.ask(*PROMPTS), expected)


@pytest.mark.parametrize("layout", ["slot", "static"])
def test_every_layout_answers_alike_when_memory_is_short(
    model: LoadedModel, expected: list[Answer], layout: str
) -> None:
    engine = Engine(replace(model, layout=layout), num_blocks=10, depth=2)
    for _ in range(2):
        assert same(engine.ask(*PROMPTS), expected)
    if layout == "slot":
        assert engine.scheduler.tally.num_preemptions > 0


def test_slots_share_what_is_common_to_the_token(
    model: LoadedModel, expected: list[Answer]
) -> None:
    engine = Engine(replace(model, layout="slot"))
    cold = [engine.ask(prompt)[0] for prompt in PROMPTS]
    assert num_cached(cold) == [0, 43, 31, 40, 16, 42]
    assert same(cold, expected)


@pytest.mark.parametrize("layout", ["slot", "static"])
def test_choices_answer_as_alone_in_every_layout(
    model: LoadedModel, alone: list[Answer], layout: str
) -> None:
    assert same(Engine(replace(model, layout=layout), depth=2).ask(SHARED, n=3), alone[:3])


def test_a_shifted_context_answers_alike_in_every_layout(model: LoadedModel) -> None:
    """However it is chunked, found or set back, what is computed of the tokens left is the same."""
    prompts = [SHARED[:20], SHARED[:23], SHARED[5:20]]
    alone = [Engine(model, max_model_len=28).ask(prompt, n_keep=6)[0] for prompt in prompts]
    for layout, num_blocks in (("block", 5), ("slot", 5), ("static", 8)):
        engine = Engine(
            replace(model, layout=layout), max_model_len=28, num_blocks=num_blocks, depth=2,
            max_num_batched_tokens=9,
        )  # fmt: skip
        assert same(engine.ask(*prompts, n_keep=6), alone)
