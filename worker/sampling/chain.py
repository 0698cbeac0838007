"""The table of stages in their default order, and the chain of one request.

The order is vLLM's where vLLM has the stage; the others stand where llama.cpp has them beside these
neighbours. A new stage is a class, a line here, and a line in `protos.limits.STAGES`.
"""

from __future__ import annotations

from protos.limits import samplers_violation
from worker.errors import RowError
from worker.sampling.candidates import Recipe, Stage
from worker.sampling.constraints import AllowedTokenIds, BadWords, LogitBias, MinTokens
from worker.sampling.repetition import Dry, Penalties
from worker.sampling.temperature import DynamicTemperature, Temperature
from worker.sampling.truncation import MinP, TopK, TopNSigma, TopP, TypicalP, Xtc

STAGES: dict[str, type[Stage]] = {
    "logit_bias": LogitBias,
    "allowed_token_ids": AllowedTokenIds,
    "bad_words": BadWords,
    "penalties": Penalties,
    "dry": Dry,
    "temperature": Temperature,
    "dynamic_temperature": DynamicTemperature,
    "top_n_sigma": TopNSigma,
    "min_p": MinP,
    "top_k": TopK,
    "typical_p": TypicalP,
    "top_p": TopP,
    "xtc": Xtc,
}
GREEDY = ("logit_bias", "allowed_token_ids", "bad_words", "penalties", "dry")
"""What acts at temperature 0: the likeliest token is taken after masks and penalties."""


def chain(recipe: Recipe, greedy: bool = False) -> tuple[tuple[str, Stage], ...]:
    """Return the stages that `recipe` needs with their names, in order.

    Raises RowError when it names a stage that does not exist, or one twice.
    """
    names = tuple(recipe.params.samplers) or tuple(STAGES)
    if why := samplers_violation(names):
        raise RowError(why)
    first = MinTokens.create(recipe)
    links: list[tuple[str, Stage]] = [("min_tokens", first)] if first else []
    for name in names:
        stage = STAGES[name].create(recipe) if name in GREEDY or not greedy else None
        if stage is not None:
            links.append((name, stage))
    return tuple(links)
