"""Host memory behind the prefix cache, with real arithmetic: what comes back answers bit for bit as
what is computed, and what does not come back whole is computed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.prefix_cache import model_key
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.sequence import Status
from millrace.engine_thread import InlineWorker
from protos.common_pb2 import SamplingParams
from protos.worker import Add, Limits
from tests.support.model_folders import write_folder
from worker.build import LoadedModel, load_model
from worker.host_tier import HostTier

PROMPT = [(7 * i) % 61 for i in range(100)]
OTHERS = [[(5 * i + j) % 59 for i in range(120)] for j in range(3)]
Answer = tuple[list[int], list[tuple[float, ...]], int]
"""Token ids, logprobs, and how many prompt tokens were found."""


@pytest.fixture(scope="module", params=["tiny", "qwen2-tied-f32"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    if request.param == "tiny":
        folder, host_kv_bytes = write_folder(tmp_path_factory.mktemp("model")), 2**20
    else:
        folder = request.getfixturevalue("reference_data") / "golden" / request.param
        host_kv_bytes = 2**24
    return replace(load_model(folder, num_threads=1), host_kv_bytes=host_kv_bytes)


class Engine:
    """One scheduler, one runner and its host memory."""

    def __init__(self, model: LoadedModel, num_blocks: int = 12) -> None:
        facts = model.facts(10**6)
        self.runner = model.runner(num_blocks)
        self.worker = InlineWorker(self.runner, model.grammars.prepare)
        self.scheduler = Scheduler(
            num_blocks=num_blocks, block_size=facts.block_size, vocab_size=facts.vocab_size,
            max_model_len=256, bounds=Bounds(4, 64, 8, host_blocks=facts.host_blocks),
            prefix_key=model_key(facts),
        )  # fmt: skip
        self.num_waits = 0
        self._slot = 0

    @property
    def tier(self) -> HostTier:
        assert self.runner.host_tier is not None
        return self.runner.host_tier

    def ask(self, prompt: list[int]) -> Answer:
        sampling = SamplingParams(temperature=1.0, seed=5, top_k=40).SerializeToString()
        self._slot += 1
        body, limits = array("I", prompt).tobytes(), Limits(6, logprobs=4)
        self.scheduler.add(Add(1, self._slot, "r", body, limits, sampling), 0.0)
        token_ids, logprobs, num_cached = list[int](), list[tuple[float, ...]](), 0
        while self.scheduler.num_running + self.scheduler.num_waiting:
            for answer in self.worker.answers():
                self.scheduler.errand_done(answer, 0.0)
            plan = self.scheduler.schedule(0.0)
            for errand in self.scheduler.take_errands():
                self.worker.send(errand)
            assert self.scheduler.check() == ""
            if plan is None:
                rows = list(self.scheduler._roster.live())
                assert [row.status for row in rows] == [Status.WAITING_FOR_REMOTE_KVS]
                self.num_waits += 1
                self.worker.wait()
                continue
            self.worker.launch(plan)
            for event in self.scheduler.apply(self.worker.collect(), 0.0):
                token_ids += event.token_ids
                logprobs += [row.logprobs for row in event.logprobs]
                num_cached = event.finish.num_cached_tokens if event.finish else num_cached
        return token_ids, logprobs, num_cached

    def crowd_out(self) -> None:
        for prompt in OTHERS:
            self.ask(prompt)


def test_what_comes_back_is_what_would_be_computed(model: LoadedModel) -> None:
    engine = Engine(model)
    first = engine.ask(PROMPT)
    assert first[2] == 0 and engine.num_waits == 0
    engine.crowd_out()
    again = engine.ask(PROMPT)
    assert again[:2] == first[:2]
    assert again[2] == 96 and engine.num_waits > 0, "the whole blocks of the prompt came back"
    assert engine.scheduler.tally.num_host_hits == 96
    assert engine.tier.events["loaded"] == 6 and not engine.tier.events["lost"]


def _flip(tier: HostTier) -> None:
    tier._memory[:, 33] ^= 1


def _flip_third(tier: HostTier) -> None:
    """The third block of the prompt was stored somewhere: flip where it is loaded from."""
    wanted, load = 0, tier.load

    def flipping(block_ids: Sequence[int], keys: Sequence[bytes]) -> int:
        nonlocal wanted
        first, wanted = wanted, wanted + len(keys)
        if first <= 2 < wanted:
            tier._memory[tier._held[keys[2 - first]][0]] ^= np.uint8(255)
        return load(block_ids, keys)

    tier.load = flipping  # type: ignore[method-assign]


def _forget(tier: HostTier) -> None:
    tier.drop(list(tier._held))


@pytest.mark.parametrize(("harm", "num_good"), [(_flip, 0), (_flip_third, 32), (_forget, 0)])
def test_what_is_lost_is_computed_again(
    model: LoadedModel, harm: Callable[[HostTier], None], num_good: int
) -> None:
    engine = Engine(model)
    first = engine.ask(PROMPT)
    engine.crowd_out()
    harm(engine.tier)
    again = engine.ask(PROMPT)
    assert again[:2] == first[:2], "a corrupt block has answered"
    assert again[2] == num_good
    assert engine.scheduler.tally.num_host_losses == 96 - num_good
    assert engine.ask(PROMPT)[0] == first[0]


def test_tenants_and_small_memories(model: LoadedModel, tmp_path: Path) -> None:
    """Room for two blocks: little comes back, nothing is wrong."""
    engine = Engine(replace(model, host_kv_bytes=2 * 2 * 2 * 16 * 16 * 4))
    first = engine.ask(PROMPT)
    for _ in range(3):
        engine.crowd_out()
        assert engine.ask(PROMPT)[:2] == first[:2]
