"""SamplingParams: what it refuses, and what it says to each tier."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import InvalidRequest
from millrace.params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature must be between 0 and 2, got -0.1"),
        ("temperature", float("nan"), "temperature must be a finite number"),
        ("temperature", "hot", "temperature must be a number, got 'hot'"),
        ("top_p", 1.5, "top_p must be between 0 and 1"),
        ("top_k", -2, "top_k must be between 0 and"),
        ("top_k", 1.5, "top_k must be a whole number"),
        ("max_tokens", 0, "max_tokens must be between 1 and"),
        ("max_tokens", True, "max_tokens must be a whole number, got True"),
        ("n", 9, "n must be between 1 and 8"),
        ("logprobs", 21, "logprobs must be between 0 and 20"),
        ("seed", 2**64, "seed must be between"),
        ("min_tokens", 17, "min_tokens is 17, more than max_tokens"),
        ("stop", [""], "stop must be strings of 1 to 256 characters, got ''"),
        ("stop", ["a"] * 17, "stop has 17 strings, at most 16"),
        ("stop_token_ids", [-1], "stop_token_ids must hold token ids, got -1"),
        ("stop_token_ids", [1] * 257, "stop_token_ids has more than 256"),
        ("logit_bias", {1: 101}, "logit_bias must be between -100 and 100"),
        ("logit_bias", {"a": 1}, "logit_bias must hold token ids, got 'a'"),
    ],
)
def test_refusals_name_the_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})
    assert refused.value.message.startswith(message)
    assert refused.value.param == field


def test_what_is_unset_is_left_to_the_model_folder() -> None:
    sampling = SamplingParams().sampling(seed=5)
    assert not sampling.HasField("temperature")
    assert not sampling.HasField("top_k")
    assert sampling.seed == 5
    assert SamplingParams().limits().max_tokens == 16
    assert not SamplingParams(max_tokens=None).limits().HasField("max_tokens")
    assert not SamplingParams().limits().HasField("logprobs")


def test_every_field_reaches_its_tier() -> None:
    params = SamplingParams(
        n=2, temperature=0.5, top_k=-1, seed=-1, logprobs=0, stop="end", stop_token_ids=[7, 258],
        ignore_eos=True, logit_bias={3: -1.5}, include_stop_str_in_output=True,
        skip_special_tokens=False, min_tokens=4,
    )  # fmt: skip
    sampling = params.sampling(seed=5)
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.5, 0, 2**64 - 1)
    assert [(b.token_id, b.bias) for b in sampling.logit_bias] == [(3, -1.5)]
    limits = params.limits()
    assert (limits.n, limits.logprobs, limits.min_tokens) == (2, 0, 4)
    assert limits.HasField("logprobs")
    assert limits.stop_token_ids == b"\x07\0\0\0\x02\x01\0\0"
    text = params.text_options()
    assert (list(text.stop), list(text.stop_token_ids)) == (["end"], [7, 258])
    assert text.include_stop and text.ignore_eos and text.keep_special_tokens
