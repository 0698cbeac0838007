"""A sequence's logits do not depend, by a bit, on how many others share its pass, nor on which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.cuda.case import EPSILON
from worker.backends.cuda import CudaBackend
from worker.backends.cuda_cache import CudaKvCache
from worker.backends.gpu import Gpu
from worker.batch import Batch
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder, shapes
from worker.models.rope import Rope
from worker.models.wiring import Wiring

HEAD_DIM, VOCAB, BLOCK = 16, 64, 16
CONFIG = ModelConfig(
    architecture="Qwen2ForCausalLM", vocab_size=VOCAB, hidden_size=64, intermediate_size=96,
    num_layers=2, num_heads=4, num_kv_heads=2, head_dim=HEAD_DIM, max_position_embeddings=512,
    rms_norm_eps=1e-6, rope=Rope(tuple(1e4 ** (-np.arange(0, 16, 2) / 16)), 1.0),
    windows=(0, 0), tie_word_embeddings=True, wiring=Wiring(qkv_bias=True),
    dtype="bfloat16",
)  # fmt: skip
LENGTHS = (37, 1, 300, 16, 5, 64, 257, 17)
"""Tokens of a sequence; they repeat."""
PIECES = 5


class Piece(NamedTuple):
    """`count` tokens of sequence `name`, from `start` on."""

    name: int
    start: int
    count: int


class RandomWeights:
    def __init__(self) -> None:
        self._shapes = shapes(CONFIG)

    def read(self, name: str) -> Any:
        rng = np.random.default_rng(len(name) * 1000 + sum(name.encode()))
        values = rng.standard_normal(self._shapes[name], np.float32) * np.float32(0.2)
        return values + 1 if "norm" in name else values


class Sequences:
    """Prompts whose keys are computed, each in blocks of its own."""

    def __init__(self, gpu: Gpu, dtype: str, count: int) -> None:
        self.lengths = [LENGTHS[i % len(LENGTHS)] for i in range(count)]
        ends = np.cumsum([0, *[-(-length // BLOCK) for length in self.lengths]])
        self._tables = [np.arange(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        rng = np.random.default_rng(1)
        self._tokens = [rng.integers(0, VOCAB, length) for length in self.lengths]
        backend = CudaBackend(gpu, dtype, (4, 2, HEAD_DIM), CONFIG.max_position_embeddings)
        model = Decoder(CONFIG, RandomWeights(), backend)
        cache = CudaKvCache(gpu, CONFIG, int(ends[-1]), BLOCK, dtype)
        self._forward: Callable[[Batch], Any] = backend.bind(model, cache.layers)

    @property
    def num_different(self) -> int:
        """Among many prompts of a single token some are equal."""
        return len({tokens.tobytes() for tokens in self._tokens})

    def logits(self, pieces: list[Piece]) -> list[np.ndarray[Any, Any]]:
        """Return those of each piece's last token, in one pass."""
        ends = [piece.start + piece.count for piece in pieces]
        width = max(-(-end // BLOCK) for end in ends)
        tables = np.zeros((len(pieces), width), np.int32)
        positions = [np.arange(piece.start, end) for piece, end in zip(pieces, ends, strict=True)]
        cells = []
        for row, (piece, places) in enumerate(zip(pieces, positions, strict=True)):
            known = self._tables[piece.name][:width]
            tables[row, : len(known)] = known
            cells.append(known[places // BLOCK] * BLOCK + places % BLOCK)
        starts = np.cumsum([0, *[piece.count for piece in pieces]]).astype(np.int32)
        token_ids = [self._tokens[p.name][p.start : p.start + p.count] for p in pieces]
        outs = self._forward(
            Batch(
                token_ids=np.concatenate(token_ids).astype(np.int32),
                positions=np.concatenate(positions).astype(np.int32),
                cells=np.concatenate(cells).astype(np.int32),
                query_starts=starts,
                block_tables=tables,
                logit_rows=starts[1:] - 1,
                state_rows=np.zeros(0, np.int32),
                block_size=BLOCK,
            )
        )
        return list(outs.logits)

    def last(self, name: int) -> Piece:
        """Return the last token of a sequence: a step of decoding."""
        return Piece(name, self.lengths[name] - 1, 1)


def sizes(is_real: bool) -> tuple[int, ...]:
    """Return the batches to try: the edges of tiles, of buckets and of kernels."""
    return (1, 2, 7, 8, 9, 16, 31, 33, 64, 65, 128, 255, 256, 257) if is_real else (1, 9, 17)


@pytest.mark.parametrize(
    "dtype", ["bf16", *[pytest.param(name, marks=pytest.mark.kernels) for name in ("f16", "f32")]]
)
def test_bits_do_not_depend_on_the_batch(gpu: Gpu, dtype: str, pytestconfig: pytest.Config) -> None:
    tried = sizes(pytestconfig.getoption("--cuda"))
    some = Sequences(gpu, dtype, max(tried))
    probes = range(min(len(LENGTHS), max(tried)))
    whole = {i: some.logits([Piece(i, 0, some.lengths[i])])[0] for i in range(max(tried))}
    assert len({logits.tobytes() for logits in whole.values()}) == some.num_different, "all alike"
    alone = {i: some.logits([some.last(i)])[0] for i in probes}
    for i in probes:
        assert alone[i].tobytes() == whole[i].tobytes(), "decode and prefill part"
    rng = np.random.default_rng(2)
    for size in tried:
        names = rng.permutation(max(tried))[:size].tolist()
        for name, logits in zip(names, some.logits([some.last(n) for n in names]), strict=True):
            assert logits.tobytes() == whole[name].tobytes(), (size, name)


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f32", marks=pytest.mark.kernels)])
def test_any_mixture_of_chunks_gives_the_same(
    gpu: Gpu, dtype: str, pytestconfig: pytest.Config
) -> None:
    """Chunks of prompts of every length beside single tokens, in random orders."""
    count = 64 if pytestconfig.getoption("--cuda") else 8
    some, rng = Sequences(gpu, dtype, count), np.random.default_rng(3)
    whole = [some.logits([Piece(i, 0, some.lengths[i])])[0] for i in range(count)]
    for _ in range(PIECES):
        done, left = [0] * count, set(range(count))
        while left:
            chosen = rng.permutation(sorted(left)).tolist()[: max(1, len(left) // 2)]
            pieces = []
            for name in chosen:
                most = some.lengths[name] - done[name]
                number = int(rng.choice([1, min(3, most), min(20, most), most]))
                pieces.append(Piece(name, done[name], number))
                done[name] += number
            for name, logits in zip(chosen, some.logits(pieces), strict=True):
                if done[name] == some.lengths[name]:
                    left.remove(name)
                    assert logits.tobytes() == whole[name].tobytes(), name
        if not pytestconfig.getoption("--cuda"):
            break


def test_the_comparison_can_fail() -> None:
    assert np.float32(1).tobytes() != np.float32(1 + EPSILON["f32"]).tobytes()
