"""Draw: how one sequence's tokens are drawn, decoded once from its SamplingParams."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from protos import common_pb2
from protos import worker as wire
from worker.errors import RowError
from worker.grammar import Follower, Grammars
from worker.kernels.checks import Ints
from worker.noise import Ids
from worker.sampling.candidates import Recipe, column
from worker.sampling.chain import chain
from worker.sampling.shortlist import shortlist
from worker.sampling.temperature import Temperature
from worker.sampling.thinking import ThinkingBudget


class Draw:
    """The chain of a sequence, its grammar, and what its noise is made of.

    Of the sequence's history it holds no more than how far the grammar has followed it.
    """

    def __init__(
        self, start: wire.SequenceStart, vocab_size: int, grammars: Grammars | None = None
    ) -> None:
        params = common_pb2.SamplingParams.FromString(start.sampling)
        _check_ids(params, vocab_size)
        stop_token_ids = tuple(i for i in start.stop_token_ids if i < vocab_size)
        recipe = Recipe(params, start.min_tokens, stop_token_ids)
        self.seed = params.seed
        self.choice = start.choice
        self.logprobs = start.logprobs
        self.is_greedy = params.HasField("temperature") and params.temperature == 0
        self.is_traced = params.return_sampler_trace
        self.stages = chain(recipe, self.is_greedy)
        self.grammar = _grammar(params, stop_token_ids, grammars)
        self._thinking = ThinkingBudget.create(params)
        self.is_bound = self.grammar is not None or self._thinking is not None
        """Not all tokens may come at all times; which ones, the output decides."""
        self.is_plain = self.is_greedy and not (self.stages or self.is_traced or self.is_bound)
        """The likeliest token of the raw logits is drawn."""
        self.free_temperature = self._free_temperature()
        self.shortlist = None if self.is_traced else shortlist(self.stages)

    def allowed(self, output_ids: Ints) -> Ids | None:
        """Return the ids that may come next, rising; None = all. See `Follower.allowed`."""
        found = self.grammar.allowed(output_ids) if self.grammar is not None else None
        forced = self._thinking.forced(output_ids) if self._thinking is not None else None
        return found if forced is None else forced

    def _free_temperature(self) -> float | None:
        """Return the temperature when it is all there is to the chain: any token may be drawn."""
        if self.is_greedy or self.is_traced or self.is_bound or len(self.stages) > 1:
            return None
        if not self.stages:
            return 1.0
        stage = self.stages[0][1]
        return stage.temperature if isinstance(stage, Temperature) else None


def read_draw(start: wire.SequenceStart, vocab_size: int, grammars: Grammars | None = None) -> Draw:
    """Return how the sequence is drawn; raise RowError whatever is wrong with its parameters.

    The engine carries them unread: this is the last door, and one request must not end a step.
    """
    try:
        return Draw(start, vocab_size, grammars)
    except RowError:
        raise
    except Exception as error:
        raise RowError(f"sampling parameters cannot be used: {error!r}") from error


def _grammar(
    params: common_pb2.SamplingParams, stop_token_ids: tuple[int, ...], grammars: Grammars | None
) -> Follower | None:
    if params.grammar.kind == common_pb2.Grammar.NONE:
        return None
    if grammars is None:
        raise RowError("this worker has no tokenizer, which grammars need")
    return grammars.follow(params.grammar, np.array(stop_token_ids, np.int64))


def _check_ids(params: common_pb2.SamplingParams, vocab_size: int) -> None:
    """Raise RowError when a field names a token that the model does not have."""
    named: dict[str, Iterable[int]] = {
        "logit_bias": (bias.token_id for bias in params.logit_bias),
        "allowed_token_ids": column(params.allowed_token_ids).tolist(),
        "bad_words": (i for word in params.bad_words for i in column(word).tolist()),
        "thinking": column(params.thinking.end).tolist(),
    }
    for name, token_ids in named.items():
        if (highest := max(token_ids, default=-1)) >= vocab_size:
            raise RowError(f"{name} for token {highest}, vocabulary is {vocab_size}")
