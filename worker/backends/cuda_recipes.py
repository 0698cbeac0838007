"""What the GPU draws: greedy, or the default order of biases, penalties, temperature, min-p, top-k,
top-p, each optional. Knows what a row's chain is made of, and the structs of sampling.cu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from worker.kernels.structs import DRAW, EDIT
from worker.rows import Row
from worker.sampler import Sampler
from worker.sampling.candidates import History
from worker.sampling.constraints import LogitBias, MinTokens
from worker.sampling.draw import Draw
from worker.sampling.repetition import Penalties
from worker.sampling.temperature import Temperature
from worker.sampling.truncation import MinP, TopK, TopP

ORDER = ("min_tokens", "logit_bias", "penalties", "temperature", "min_p", "top_k", "top_p")
Structs = np.ndarray[Any, np.dtype[np.void]]


class CudaRecipe(NamedTuple):
    """How one sequence's tokens are drawn on the GPU: what does not change from step to step."""

    inverse_temperature: float
    min_p_log: float
    top_p: float
    top_k: int
    edits: tuple[MinTokens | LogitBias | Penalties, ...]
    """Stages that touch single tokens before all others act."""
    reads_tokens: bool
    """Whether it must know which tokens were drawn before, not only how many."""


def recipe_of(draw: Draw) -> CudaRecipe | None:
    """Return what the GPU is told, or None when the chain is not in the default order of these."""
    if draw.is_traced or draw.is_bound:
        return None
    names = [name for name, _ in draw.stages]
    places = [ORDER.index(name) for name in names if name in ORDER]
    if len(places) < len(names) or places != sorted(places):
        return None
    temperature, min_p_log, top_p, top_k = 1.0, -math.inf, 1.0, 0
    edits: list[MinTokens | LogitBias | Penalties] = []
    for _, stage in draw.stages:
        if isinstance(stage, MinTokens | LogitBias | Penalties):
            edits.append(stage)
        elif isinstance(stage, Temperature):
            temperature = stage.temperature
        elif isinstance(stage, MinP):
            min_p_log = math.log(stage.min_p)
        elif isinstance(stage, TopK):
            top_k = min(stage.k, 2**31 - 1)
        elif isinstance(stage, TopP):
            top_p = stage.p
    inverse = 0.0 if draw.is_greedy else 1 / temperature
    reads_tokens = any(isinstance(stage, Penalties) for stage in edits)
    return CudaRecipe(inverse, min_p_log, top_p, top_k, tuple(edits), reads_tokens)


def draws_of(
    rows: Sequence[Row], recipes: Sequence[CudaRecipe], logit_rows: Sequence[int], first_place: int
) -> Structs:
    """Return DRAW [rows]: row i draws from logits row `logit_rows[i]`, to place first_place + i."""
    return np.array(
        [
            (Sampler.key(row), *recipe[:4], logit_row, place)
            for place, (row, recipe, logit_row) in enumerate(
                zip(rows, recipes, logit_rows, strict=True), first_place
            )
        ],
        DRAW,
    )


def edits_of(
    rows: Sequence[Row], recipes: Sequence[CudaRecipe], logit_rows: Sequence[int]
) -> Structs | None:
    """Return EDIT [any] for every token that the chains touch; None when they touch none."""
    edits = [
        (logit_row, *edit)
        for row, recipe, logit_row in zip(rows, recipes, logit_rows, strict=True)
        if recipe.edits
        for edit in _edits(row.history, recipe)
    ]
    return np.array(edits, EDIT) if edits else None


def _edits(history: History, recipe: CudaRecipe) -> list[tuple[int, float, float, float]]:
    """Return (token, repetition, subtract, bias) of every token that the chain touches."""
    bias: dict[int, float] = {}
    repetition: dict[int, float] = {}
    subtract: dict[int, float] = {}
    for stage in recipe.edits:
        if isinstance(stage, MinTokens):
            if len(history.output_ids) < stage.min_tokens:
                bias |= dict.fromkeys(stage.stop_token_ids.tolist(), -math.inf)
        elif isinstance(stage, LogitBias):
            for token, amount in zip(stage.ids.tolist(), stage.biases.tolist(), strict=True):
                bias[token] = bias.get(token, 0.0) + amount
        else:
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
