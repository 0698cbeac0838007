"""Drawing on the GPU: the common chains, in place; rows with rarer ones come to the host sampler.

On the device: greedy, or the default order of biases, penalties, temperature, min-p, top-k, top-p,
each optional; and logprobs. Knows what a row's chain is made of, and the structs of sampling.cu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from protos import worker as wire
from worker.backends.cuda_logits import CudaLogits
from worker.backends.gpu import Arena, Array, Gpu
from worker.kernels.structs import DRAW, EDIT
from worker.rows import Row
from worker.sampler import Drawn, Launched, Sampler
from worker.sampling.constraints import LogitBias, MinTokens
from worker.sampling.draw import Draw
from worker.sampling.repetition import Penalties
from worker.sampling.temperature import Temperature
from worker.sampling.truncation import MinP, TopK, TopP

ORDER = ("min_tokens", "logit_bias", "penalties", "temperature", "min_p", "top_k", "top_p")
NOT_FINITE = -1
i32 = np.int32


class CudaSampler:
    """Draws of one runner; its buffers are the arena's."""

    def __init__(self, gpu: Gpu, arena: Arena, vocab_size: int) -> None:
        self._gpu = gpu
        self._arena = arena
        self._vocab_size = vocab_size
        self._host = Sampler(vocab_size)

    def draws_later(self, rows: Sequence[Row]) -> bool:
        """Its draws are read at once."""
        return False

    def launch(self, logits: CudaLogits, rows: Sequence[Row]) -> Launched:
        """Draw one token per row; see `sample`."""
        drawn = self.sample(logits, rows)
        return Launched(lambda: drawn)

    def sample(self, logits: CudaLogits, rows: Sequence[Row]) -> list[Drawn]:
        """Draw one token per row."""
        here = [i for i, row in enumerate(rows) if is_common(row.draw)]
        drawn: dict[int, Drawn] = {}
        if here:
            some = self._draw(logits[here], [rows[i] for i in here])
            drawn = dict(zip(here, some, strict=True))
        for i, row in enumerate(rows):
            if i not in drawn:
                drawn[i] = self._host.sample(logits[i][None], [row])[0]
        return [drawn[i] for i in range(len(rows))]

    def _draw(self, logits: CudaLogits, rows: Sequence[Row]) -> list[Drawn]:
        edits = [_edits(row) for row in rows]
        edited = [i for i, some in enumerate(edits) if some]
        plain = [i for i, some in enumerate(edits) if not some]
        tokens = np.empty(len(rows), np.int32)
        if plain:
            places = [logits.places[i] for i in plain]
            tokens[plain] = self._launch(logits.values, places, [rows[i] for i in plain])
        if edited:
            copies = self._edited(logits, edited, edits)
            some = [rows[i] for i in edited]
            tokens[edited] = self._launch(copies, range(len(edited)), some)
        told = self._logprobs(logits, rows, tokens)
        return [self._drawn(row, int(token), told.get(i))
                for i, (row, token) in enumerate(zip(rows, tokens, strict=True))]  # fmt: skip

    def _drawn(self, row: Row, token: int, logprobs: wire.Logprobs | None) -> Drawn:
        if token < 0:
            why = "the model's logits are not finite" if token == NOT_FINITE else (
                "every token is forbidden")  # fmt: skip
            return Drawn(row, fault=why)
        return Drawn(row, token, logprobs)

    def _launch(self, values: Array, places: Sequence[int], rows: Sequence[Row]) -> Any:
        draws = np.array([_draw_of(row, at) for row, at in zip(rows, places, strict=True)], DRAW)
        (place,) = self._arena.put_all("draws", [draws])
        tokens = self._arena.take("drawn", (len(draws),), np.int32)
        sizes = (i32(self._vocab_size), i32(values.shape[1]))
        self._gpu.launch("sample", (len(draws),), 1024, (tokens, values, place, *sizes))
        return self._gpu.read(tokens)

    def _edited(
        self, logits: CudaLogits, chosen: Sequence[int], edits: Sequence[list[tuple[Any, ...]]]
    ) -> Array:
        """Return copies of the `chosen` rows with biases and penalties."""
        stride = logits.values.shape[1]
        rows = [(at, *edit) for at, i in enumerate(chosen) for edit in edits[i]]
        sources = np.array([logits.places[i] for i in chosen], np.int32)
        sources, listed = self._arena.put_all("edits", [sources, np.array(rows, EDIT)])
        copies = self._arena.take("edited", (len(chosen), stride), np.float32)
        grid = (-(-stride // 1024), len(chosen))
        self._gpu.launch("copy_rows", grid, 1024, (copies, logits.values, sources, i32(stride)))
        arguments = (copies, listed, i32(len(rows)), i32(stride))
        self._gpu.launch("edit_logits", (-(-len(rows) // 128),), 128, arguments)
        return copies

    def _logprobs(
        self, logits: CudaLogits, rows: Sequence[Row], tokens: Any
    ) -> dict[int, wire.Logprobs]:
        wanted = [i for i, row in enumerate(rows) if row.draw.logprobs is not None]
        if not wanted:
            return {}
        most = max(rows[i].draw.logprobs or 0 for i in wanted)
        places = np.array([logits.places[i] for i in wanted], np.int32)
        places, chosen = self._arena.put_all("told", [places, np.array(tokens[wanted], np.int32)])
        ids = self._arena.take("told_ids", (len(wanted), most + 1), np.int32)
        values = self._arena.take("told_logprobs", (len(wanted), most + 1), np.float32)
        sizes = (i32(most), i32(self._vocab_size), i32(logits.values.shape[1]))
        arguments = (ids, values, logits.values, places, chosen, *sizes)
        self._gpu.launch("log_softmax", (len(wanted),), 1024, arguments)
        told_ids, told_values = self._gpu.read(ids), self._gpu.read(values)
        told = {}
        for i, some_ids, some in zip(wanted, told_ids.tolist(), told_values.tolist(), strict=True):
            count = (rows[i].draw.logprobs or 0) + 1
            told[i] = wire.Logprobs(
                rows[i].seq_id,
                rows[i].num_output_tokens,
                tuple(some_ids[:count]),
                tuple(some[:count]),
            )
        return told


def is_common(draw: Draw) -> bool:
    """Return whether the GPU draws this: a chain in the default order of what it has."""
    if draw.is_traced or draw.grammar is not None:
        return False
    names = [name for name, _ in draw.stages]
    places = [ORDER.index(name) for name in names if name in ORDER]
    return len(places) == len(names) and places == sorted(places)


def _draw_of(row: Row, place: int) -> tuple[Any, ...]:
    """Return the struct of a row's draw from logits row `place`."""
    temperature, min_p_log, top_p, top_k = 1.0, -math.inf, 1.0, 0
    for _, stage in row.draw.stages:
        if isinstance(stage, Temperature):
            temperature = stage.temperature
        elif isinstance(stage, MinP):
            min_p_log = math.log(stage.min_p)
        elif isinstance(stage, TopK):
            top_k = min(stage.k, 2**31 - 1)
        elif isinstance(stage, TopP):
            top_p = stage.p
    inverse = 0.0 if row.draw.is_greedy else 1 / temperature
    return (Sampler.key(row), inverse, min_p_log, top_p, top_k, place, 0)


def _edits(row: Row) -> list[tuple[Any, ...]]:
    """Return (token, repetition, subtract, bias) of every token that the chain touches."""
    bias: dict[int, float] = {}
    repetition: dict[int, float] = {}
    subtract: dict[int, float] = {}
    history = row.history
    for _, stage in row.draw.stages:
        if isinstance(stage, MinTokens) and len(history.output_ids) < stage.min_tokens:
            bias |= dict.fromkeys(stage.stop_token_ids.tolist(), -math.inf)
        elif isinstance(stage, LogitBias):
            for token, amount in zip(stage.ids.tolist(), stage.biases.tolist(), strict=True):
                bias[token] = bias.get(token, 0.0) + amount
        elif isinstance(stage, Penalties):
            seen = np.union1d(history.prompt_ids, history.output_ids).tolist()
            if stage.repetition != 1:
                repetition = dict.fromkeys(seen, stage.repetition)
            ids, counts = np.unique(history.output_ids, return_counts=True)
            amounts = stage.presence + stage.frequency * counts
            subtract = dict(zip(ids.tolist(), amounts.tolist(), strict=True))
    touched = bias.keys() | repetition.keys() | subtract.keys()
    return [
        (token, repetition.get(token, 1.0), subtract.get(token, 0.0), bias.get(token, 0.0))
        for token in sorted(touched)
    ]
