"""Drawing on the GPU: the common chains, in place; rows with rarer ones come to the host sampler.

What follows a graph of the forward pass is a graph itself, over buffers that never move. Drawn
tokens stay on the device, where the next step finds them, and are read when the host gets to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from protos import worker as wire
from worker.backends.cuda_graph import BUCKETS
from worker.backends.cuda_logits import CudaLogits
from worker.backends.cuda_recipes import CudaRecipe, Structs, draws_of, edits_of, recipe_of
from worker.backends.gpu import Array, Gpu, Graphs, Mark, Reading, Scratch
from worker.errors import NothingLeft, RowError
from worker.kernels.checks import Floats
from worker.kernels.structs import DRAW, EDIT, TOLD
from worker.rows import Row
from worker.sampler import LOGITS_NOT_FINITE, Drawn, Launched, Sampler
from worker.sampling.draw import Draw

MOST_EDITS = 4096
"""Of all rows of a graph; with more, sampling is launched kernel by kernel."""
ALTERNATIVES = (0, 5, 20)
"""Logprobs beside the drawn token's that a graph tells."""
STRUCTS = "draws"
NONE = np.zeros(0, EDIT)
NOT_FINITE = -1
i32 = np.int32
Key = tuple[int, bool, int]
"""Of a graph: rows, whether logits are edited, logprobs beside the drawn token's or -1."""


class LaunchInputs(NamedTuple):
    """What a launch is told, as structs of sampling.cu."""

    draws: Structs
    edits: Structs | None
    told: Structs | None
    num_alternatives: int

    def structs(self) -> list[Structs]:
        """Return draws, edits and told, which lie in one buffer of the device."""
        return [NONE if some is None else some for some in self[:3]]

    def padded(self, bucket: int) -> LaunchInputs | None:
        """Return as much as a graph of `bucket` rows takes; None when it takes less."""
        count = next((n for n in ALTERNATIVES if n >= self.num_alternatives), None)
        if count is None or (self.edits is not None and len(self.edits) > MOST_EDITS):
            return None
        return LaunchInputs(
            _padded(self.draws, bucket, "place"),
            None if self.edits is None else _padded(self.edits, MOST_EDITS, "row"),
            None if self.told is None else _padded(self.told, bucket, "row"),
            0 if self.told is None else count,
        )


class CudaSampler:
    """Draws of one runner; its buffers lie in `scratch`, or in one of its own for graphs."""

    def __init__(self, gpu: Gpu, scratch: Scratch, vocab_size: int, drawn: Array) -> None:
        """drawn: int32 [any], where drawn tokens go in turn; room for two steps' draws."""
        self._gpu = gpu
        self._scratch = scratch
        self._vocab_size = vocab_size
        self._drawn = drawn
        self._next_place = 0
        self._host = Sampler(vocab_size)
        self._recipes: WeakKeyDictionary[Draw, CudaRecipe | None] = WeakKeyDictionary()
        self._static = Scratch(gpu)
        self._graphs = Graphs[Array | None](gpu, self._static)
        self._reserve()

    @property
    def num_bytes(self) -> int:
        """Buffers of the graphs."""
        return self._static.num_bytes

    def _reserve(self) -> None:
        """Take the buffers of the largest graph, so that none moves afterwards."""
        largest = LaunchInputs(
            np.zeros(BUCKETS[-1], DRAW),
            np.zeros(MOST_EDITS, EDIT),
            np.zeros(BUCKETS[-1], TOLD),
            ALTERNATIVES[-1],
        )
        self._static.put_all(STRUCTS, largest.structs())
        _outputs(self._static, largest)

    def draws_later(self, rows: Sequence[Row]) -> bool:
        """Return whether the device draws all of `rows`, and what it must be told is known."""
        for row in rows:
            recipe = self._recipe(row)
            if recipe is None or (row.num_promised and recipe.reads_tokens):
                return False
        return 4 * len(rows) <= len(self._drawn)

    def _recipe(self, row: Row) -> CudaRecipe | None:
        try:
            return self._recipes[row.draw]
        except KeyError:
            recipe = self._recipes[row.draw] = recipe_of(row.draw)
            return recipe

    def launch(self, logits: CudaLogits, rows: Sequence[Row]) -> Launched:
        """Begin to draw one token per row; those that the host draws are waited for."""
        found = [self._recipe(row) for row in rows]
        here = [i for i, recipe in enumerate(found) if recipe]
        recipes = [recipe for recipe in found if recipe]
        if len(here) == len(rows):
            return self._begin(logits, rows, recipes)
        some = self._begin(logits[here], [rows[i] for i in here], recipes).drawn() if here else []
        drawn = dict(zip(here, some, strict=True))
        for i, row in enumerate(rows):
            if i not in drawn:
                drawn[i] = self._host.sample(logits[i][None], [row])[0]
        return Launched(lambda: [drawn[i] for i in range(len(rows))])

    def logprobs(
        self, logits: Floats, token_id: int, count: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return ids and log-probabilities, of float32 [V] logits of the host."""
        return self._host.logprobs(logits, token_id, count)

    def _begin(
        self, logits: CudaLogits, rows: Sequence[Row], recipes: Sequence[CudaRecipe]
    ) -> Launched:
        middle = self._gpu.mark()
        first = self._take_places(len(rows))
        asked = [row.draw.logprobs for row in rows]
        told = np.array(
            [(at, first + i) for i, at in enumerate(logits.places) if asked[i] is not None], TOLD
        )
        most = max((count for count in asked if count is not None), default=0)
        inputs = LaunchInputs(
            draws_of(rows, recipes, logits.places, first),
            edits_of(rows, recipes, logits.places),
            told if len(told) else None,
            most,
        )
        told_at = self._run(logits, inputs) if rows else None
        tokens = self._gpu.read_later(self._drawn[first : first + len(rows)])
        logprobs = None if told_at is None else self._gpu.read_later(told_at)
        done = (logprobs or tokens).done
        indexes = [row.num_output_tokens for row in rows]
        return Launched(
            partial(self._finish, rows, indexes, tokens, logprobs),
            done.wait,
            range(first, first + len(rows)),
            lambda: _seconds(logits.begun, middle, done),
        )

    def _take_places(self, count: int) -> int:
        """Return the first of `count` places for tokens; those of the step before stay good."""
        if self._next_place + count > len(self._drawn):
            self._next_place = 0
        first = self._next_place
        self._next_place += count
        return first

    def _run(self, logits: CudaLogits, inputs: LaunchInputs) -> Array | None:
        """Launch it all; return where ids and logprobs will be, int32 [2, any, 1 + k]."""
        padded = inputs.padded(logits.bucket) if logits.bucket else None
        key = None if padded is None else self._ready(logits, padded)
        if key is not None:
            return self._graphs.replay(key)
        places = self._scratch.put_all(STRUCTS, inputs.structs())
        return self._launch(self._scratch, logits.values, inputs, places)

    def _ready(self, logits: CudaLogits, inputs: LaunchInputs) -> Key | None:
        """Put inputs where their graph reads them; return its key, None where there is no room."""
        told = -1 if inputs.told is None else inputs.num_alternatives
        key = (logits.bucket, inputs.edits is not None, told)
        if key in self._graphs:
            self._static.write_all(STRUCTS, inputs.structs())
            return key
        places = self._static.put_all(STRUCTS, inputs.structs())
        launches = partial(self._launch, self._static, logits.values, inputs, places)
        return key if self._graphs.make(key, launches) else None

    def _launch(
        self, scratch: Scratch, values: Array, inputs: LaunchInputs, places: list[Array]
    ) -> Array | None:
        """values: float32 [any, stride], as they were when this is done."""
        draws, edits, told = places
        stride, size = i32(values.shape[1]), i32(self._vocab_size)
        saved, told_at = _outputs(scratch, inputs)
        count = 0 if inputs.edits is None else len(inputs.edits)
        touched = (values, edits, saved, i32(count), stride)
        if count:
            self._gpu.launch("edit_logits", (-(-count // 128),), 128, touched)
        drawing = (self._drawn, values, draws, size, stride)
        self._gpu.launch("sample", (len(inputs.draws),), 1024, drawing)
        if count:
            self._gpu.launch("restore_logits", (-(-count // 128),), 128, touched)
        if told_at is None or inputs.told is None:
            return None
        outs = (told_at[0], told_at[1].view(np.float32))
        sizes = (i32(inputs.num_alternatives), size, stride)
        arguments = (*outs, values, told, self._drawn, *sizes)
        self._gpu.launch("log_softmax", (len(inputs.told),), 1024, arguments)
        return told_at

    def _finish(
        self, rows: Sequence[Row], indexes: Sequence[int], tokens: Reading, told: Reading | None
    ) -> list[Drawn]:
        """Wait, and return what was drawn: the token of index `indexes[i]` of row i."""
        drawn: list[int] = tokens.values().tolist()
        lines = iter(()) if told is None else _lines(told.values(), rows)
        out = []
        for row, index, token in zip(rows, indexes, drawn, strict=True):
            logprobs = None
            if (count := row.draw.logprobs) is not None:
                ids, values = next(lines)
                logprobs = wire.Logprobs(
                    row.seq_id, index, tuple(ids[: count + 1]), tuple(values[: count + 1])
                )
            if token >= 0:
                out.append(Drawn(row, token, logprobs))
            elif token == NOT_FINITE:
                out.append(Drawn(row, error=RowError(LOGITS_NOT_FINITE)))
            else:
                out.append(Drawn(row, error=NothingLeft("every token is forbidden")))
        return out


def _padded(structs: Structs, length: int, field: str) -> Structs:
    """Return `structs` with more behind them whose `field` is -1: the kernels pass over these."""
    more = np.zeros(length, structs.dtype)
    more[: len(structs)] = structs
    more[field][len(structs) :] = -1
    return more


def _outputs(scratch: Scratch, inputs: LaunchInputs) -> tuple[Array | None, Array | None]:
    """Return room for the logits under edits, and for ids and logprobs."""
    saved = told = None
    if inputs.edits is not None:
        saved = scratch.take("saved", (len(inputs.edits),), np.float32)
    if inputs.told is not None:
        told = scratch.take("told", (2, len(inputs.told), 1 + inputs.num_alternatives), np.int32)
    return saved, told


def _lines(
    told: np.ndarray[Any, Any], rows: Sequence[Row]
) -> Iterator[tuple[list[int], list[float]]]:
    """Return ids and logprobs of the rows that want them; what stands behind is padding."""
    ids, values = told[:, : len(rows)]
    return zip(ids.tolist(), values.view(np.float32).tolist(), strict=True)


def _seconds(begin: Mark, middle: Mark, end: Mark) -> tuple[float, float]:
    return begin.seconds_until(middle), middle.seconds_until(end)
