"""Rope: the frequencies of the rotary positions, for every `rope_type` that is computed.

default: theta^(−2i/D). linear: those divided by `factor`. llama3: long waves divided, short ones
kept, a ramp between (Llama 3.1). yarn: a ramp over the dimensions instead, and cos and sin scaled
by an attention factor (Peng et al. 2023, "YaRN", sections 3.2 and 3.4). Formulas and defaults are
those of `transformers` 5; knows both spellings, `rope_parameters` and `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass

from common.model_folder import Fields

DEFAULT_THETA = 10000.0
KNOWN = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
    "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "truncate", "low_freq_factor", "high_freq_factor", "attn_factor", "finetuned",
}  # fmt: skip
"""`finetuned` (Yarn-Llama-2, Yarn-Mistral) is of a rope that changes with the length: yarn's does
not."""


@dataclass(frozen=True, slots=True)
class Rope:
    """One frequency per pair of a head, in radians per position, and a factor of cos and sin."""

    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    max_positions: int = 0
    """How far the scaling reaches; 0 when it says nothing."""


def read_rope(config: Fields, head_dim: int) -> Rope:
    """Take the rotary positions out of a config; raise ModelFolderError that names the field."""
    newer = config.inside("rope_parameters")
    # An empty object says nothing, as in transformers.
    scaling = newer if newer and newer.names() else config.inside("rope_scaling")
    _refuse_two(config)
    theta = _theta(config, DEFAULT_THETA)
    _refuse_partial(config)
    if scaling is None:
        return Rope(_plain(theta, head_dim))
    theta = _theta(scaling, theta)
    _refuse_partial(scaling)
    field = "rope_type" if scaling.get("rope_type") is not None else "type"
    kind = scaling.get(field) or "default"
    if not isinstance(kind, str) or kind not in KINDS:
        raise scaling.error(field, kind, ", ".join(KINDS))
    for name in sorted(scaling.names() - KNOWN):
        raise scaling.error(name, scaling.get(name), "absent")
    return KINDS[kind](scaling, _plain(theta, head_dim), theta, config)


def _refuse_two(config: Fields) -> None:
    """Refuse two places that say different things: the newer name, and the older one."""
    newer, older = config.get("rope_parameters"), config.get("rope_scaling")
    if newer and older and newer != older:
        raise config.error("rope_scaling", older, "absent beside rope_parameters")


def _theta(place: Fields, default: float) -> float:
    theta = place.number("rope_theta", default)
    if theta <= 1:
        raise place.error("rope_theta", theta, "a number above 1")
    return theta


def _refuse_partial(place: Fields) -> None:
    if (part := place.number("partial_rotary_factor", 1.0)) != 1.0:
        raise place.error("partial_rotary_factor", part, "1.0")


def _original(scaling: Fields, config: Fields, default: int | None = None) -> int:
    """Return the length before the scaling: it may stand beside it, as a field of the config."""
    name = "original_max_position_embeddings"
    outer = config.size(name, 0)
    inner = scaling.size(name, outer or default)
    if outer and outer != inner:  # some go by this one, others by that
        raise config.error(name, outer, f"absent, or {inner} as beside the factor")
    return inner


def _plain(theta: float, head_dim: int) -> tuple[float, ...]:
    """Round at each step to float32, as in the source, whose frequencies models were trained with.

    Rounded once, one is up to 6 units in the last place away: logits at position 12000 were up to a
    hundred times as far from the source's.
    """
    powers = (_float32(theta ** _float32(i / head_dim)) for i in range(0, head_dim, 2))
    return tuple(_float32(1.0 / power) for power in powers)


def _float32(value: float) -> float:
    return c_float(value).value


def _default(scaling: Fields, plain: tuple[float, ...], theta: float, config: Fields) -> Rope:
    return Rope(plain)


def _linear(scaling: Fields, plain: tuple[float, ...], theta: float, config: Fields) -> Rope:
    factor = scaling.number("factor")
    original = _original(scaling, config, config.size("max_position_embeddings"))
    return Rope(
        tuple(frequency / factor for frequency in plain), max_positions=int(original * factor)
    )


def _llama3(scaling: Fields, plain: tuple[float, ...], theta: float, config: Fields) -> Rope:
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    original = _original(scaling, config)
    if high <= low:
        raise scaling.error("high_freq_factor", high, f"more than low_freq_factor, {low}")

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1 - kept) * frequency / factor + kept * frequency

    return Rope(tuple(scaled(frequency) for frequency in plain))


def _yarn(scaling: Fields, plain: tuple[float, ...], theta: float, config: Fields) -> Rope:
    trained = config.size("max_position_embeddings")
    original = _original(scaling, config, trained)
    factor = scaling.number("factor", trained / original)
    num_pairs = len(plain)

    def dimension(turns: float) -> float:
        """Return where a wave turns `turns` times over the original length."""
        return num_pairs * math.log(original / (turns * 2 * math.pi)) / math.log(theta)

    first = dimension(scaling.number("beta_fast", 32.0))
    last = dimension(scaling.number("beta_slow", 1.0))
    if scaling.flag("truncate", not scaling.has("truncate")):  # null is no, as in the source
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    width = last - first or 0.001
    ramp = [min(1.0, max(0.0, (i - first) / width)) for i in range(num_pairs)]
    return Rope(
        tuple(f / factor * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)),
        _attention_factor(scaling, factor),
        int(original * factor),
    )


def _attention_factor(scaling: Fields, factor: float) -> float:
    """`attn_factor` is a weight of the paper's factor, as in its authors' code and in vLLM.

    DeepSeek-R1-0528-Qwen3-8B has one that makes 1 of it; transformers does not know the name.
    """
    weight = scaling.number("attn_factor", 1.0)
    if scaling.get("attention_factor") is not None:
        if scaling.get("attn_factor") is not None:
            raise scaling.error("attn_factor", weight, "absent beside attention_factor")
        return scaling.number("attention_factor")
    # A zero says nothing here, as in the source.
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        own, all_dim = scaling.number("mscale"), scaling.number("mscale_all_dim")
        return weight * _mscale(factor, own) / _mscale(factor, all_dim)
    return weight * _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


KINDS: dict[str, Callable[[Fields, tuple[float, ...], float, Fields], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
