"""Stages that forbid or favour single tokens: min_tokens, logit_bias, allowed ids, bad words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.noise import Doubles, Ids
from worker.sampling.candidates import Candidates, History, Recipe, column


@dataclass(frozen=True, slots=True)
class MinTokens:
    """Forbids the stop ids before `min_tokens` output tokens, if anything else is left.

    Nothing else is left when a grammar is complete. Not in the table: it always acts.
    """

    min_tokens: int
    stop_token_ids: Ids

    @classmethod
    def create(cls, recipe: Recipe) -> MinTokens | None:
        active = recipe.min_tokens and recipe.stop_token_ids
        return cls(recipe.min_tokens, np.unique(recipe.stop_token_ids)) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        if len(history.output_ids) < self.min_tokens:
            places, _ = candidates.find(self.stop_token_ids)
            if len(places) < len(candidates.ids):
                candidates.logits[places] = -np.inf
        return candidates


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds a number to the logits of some ids; the same id twice adds twice."""

    ids: Ids
    biases: Doubles

    @classmethod
    def create(cls, recipe: Recipe) -> LogitBias | None:
        biases = recipe.params.logit_bias
        ids, amounts = [b.token_id for b in biases], [b.bias for b in biases]
        return cls(np.array(ids), np.array(amounts)) if biases else None

    def touched(self, history: History) -> Ids:
        """Return the ids whose logits may change; all others are left alone, and not looked at."""
        return self.ids

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        places, found = candidates.find(self.ids)
        np.add.at(candidates.logits, places, self.biases[found])
        return candidates


@dataclass(frozen=True, slots=True)
class AllowedTokenIds:
    """Forbids every id that is not named."""

    ids: Ids

    @classmethod
    def create(cls, recipe: Recipe) -> AllowedTokenIds | None:
        ids = recipe.params.allowed_token_ids
        return cls(np.unique(column(ids))) if ids else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        places, _ = candidates.find(self.ids)
        if len(places) == 0:
            candidates.logits[:] = -np.inf
            return candidates
        return candidates.at(places)


@dataclass(frozen=True, slots=True)
class BadWords:
    """Forbids the token that would complete one of these id sequences in the output."""

    words: tuple[tuple[int, ...], ...]
    longest: int

    @classmethod
    def create(cls, recipe: Recipe) -> BadWords | None:
        words = tuple(tuple(column(word).tolist()) for word in recipe.params.bad_words if word)
        return cls(words, max(map(len, words))) if words else None

    def touched(self, history: History) -> Ids:
        """Return the ids that are forbidden now."""
        tail = tuple(history.output_ids[max(0, len(history.output_ids) - self.longest) :].tolist())
        ends = {
            word[-1]
            for word in self.words
            if len(word) <= len(tail) + 1 and word[:-1] == tail[len(tail) + 1 - len(word) :]
        }
        return np.array(sorted(ends), np.int64)

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        places, _ = candidates.find(self.touched(history))
        candidates.logits[places] = -np.inf
        return candidates
