"""How an answer is drawn: the request's fields → the wire's SamplingParams."""

from __future__ import annotations

import secrets

from api_gateway.schema import Fields
from protos import limits
from protos.columns import pack
from protos.common_pb2 import Dry, DynamicTemperature, LogitBias, SamplingParams, Xtc

SAME_NAME = (
    "temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty",
)  # fmt: skip


def sampling(body: Fields) -> SamplingParams:
    """Return the parameters that were given; the text tier fills in the model's defaults."""
    params = SamplingParams(seed=seed_of(body))
    for name in SAME_NAME:
        if (value := getattr(body, name)) is not None:
            setattr(params, name, value)
    if body.top_k is not None:
        params.top_k = max(0, body.top_k)  # -1 is vLLM's word for off
    if body.top_n_sigma is not None:
        params.top_n_sigma = max(0, body.top_n_sigma)  # and llama.cpp's for this one
    for token_id, bias in (body.logit_bias or {}).items():
        params.logit_bias.append(LogitBias(token_id=int(token_id), bias=bias))
    params.samplers.extend(body.samplers or [])
    params.allowed_token_ids = pack(body.allowed_token_ids or [])
    params.return_sampler_trace = bool(body.return_sampler_trace)
    if (dynamic := body.dynamic_temperature) is not None:
        exponent = either(dynamic.exponent, limits.DYNAMIC_TEMPERATURE_EXPONENT)
        params.dynamic_temperature.CopyFrom(
            DynamicTemperature(range=dynamic.range, exponent=exponent)
        )
    params.MergeFrom(SamplingParams(xtc=xtc_of(body), dry=dry_of(body)))
    return params


def seed_of(body: Fields) -> int:
    """Return the seed; each prompt without one draws one of its own."""
    seed = given_seed(body)
    return secrets.randbits(64) if seed is None else seed % 2**64


def given_seed(body: Fields) -> int | None:
    """Return the seed that the request gives; -1 is vLLM's and llama.cpp's word for none."""
    return None if body.seed == -1 else body.seed


def xtc_of(fields: Fields) -> Xtc | None:
    """Return the stage that `fields` ask for by the API's names; None = off. So do the next two."""
    if not fields.xtc_probability:
        return None
    threshold = either(fields.xtc_threshold, limits.XTC_DEFAULTS["xtc_threshold"])
    return Xtc(probability=fields.xtc_probability, threshold=threshold)


def dry_of(fields: Fields) -> Dry | None:
    last_n = int(either(fields.dry_penalty_last_n, limits.DRY_DEFAULTS["dry_penalty_last_n"]))
    if not fields.dry_multiplier or not last_n:
        return None
    length = either(fields.dry_allowed_length, limits.DRY_DEFAULTS["dry_allowed_length"])
    return Dry(
        multiplier=fields.dry_multiplier,
        base=either(fields.dry_base, limits.DRY_DEFAULTS["dry_base"]),
        allowed_length=int(length),
        last_n=last_n if last_n > 0 else None,
    )


def dry_breakers(fields: Fields) -> list[str]:
    """Return the strings that end a repetition; the text tier makes ids of them."""
    if not fields.dry_multiplier:
        return []
    given = fields.dry_sequence_breakers
    return list(limits.DRY_BREAKERS if given is None else given)


def either(value: float | None, default: float) -> float:
    return default if value is None else value
