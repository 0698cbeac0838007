"""SamplingParams: what it refuses, and what it says to each tier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.errors import InvalidRequest
from millrace.params import SamplingParams

POINT = {"properties": {"x": {"format": "password"}}}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature must be between 0 and 2, got -0.1"),
        ("temperature", float("nan"), "temperature must be a finite number"),
        ("temperature", "hot", "temperature must be a number, got 'hot'"),
        ("top_p", 1.5, "top_p must be between 0 and 1"),
        ("temperature", 10**400, "temperature must be between 0 and 2"),
        ("seed", -(10**400), "seed must be between"),
        ("top_k", -2, "top_k must be between 0 and"),
        ("top_k", 1.5, "top_k must be a whole number"),
        ("max_tokens", 0, "max_tokens must be between 1 and 16777216, got 0"),
        ("max_tokens", True, "max_tokens must be a whole number, got True"),
        ("n", 129, "n must be between 1 and 128"),
        ("logprobs", 21, "logprobs must be between 0 and 20"),
        ("seed", 2**64, "seed must be between"),
        ("min_tokens", 17, "min_tokens is 17, more than max_tokens"),
        ("stop", [""], "stop must be strings of 1 to 256 characters, got ''"),
        ("stop", ["a"] * 17, "stop has 17 strings, at most 16"),
        ("stop_token_ids", [-1], "stop_token_ids must hold token ids, got -1"),
        ("stop_token_ids", [1] * 257, "stop_token_ids has more than 256"),
        ("logit_bias", {1: 101}, "logit_bias must be between -100 and 100"),
        ("logit_bias", {"a": 1}, "logit_bias must hold token ids, got 'a'"),
        ("typical_p", 1.1, "typical_p must be between 0 and 1"),
        ("dry_allowed_length", 2.5, "dry_allowed_length must be a whole number"),
        ("dry_penalty_last_n", -2, "dry_penalty_last_n must be between -1 and"),
        ("prompt_logprobs", 21, "prompt_logprobs must be between 0 and 20"),
        ("bad_words", ["a" * 257], "bad_words must be strings of 1 to 256 characters"),
        ("bad_words", "abc", "bad_words must be a list of strings"),
        ("allowed_token_ids", [], "allowed_token_ids is empty"),
        ("dynamic_temperature", {"exponent": 1}, "dynamic_temperature must have range"),
        ("samplers", ["top_k", "heat"], "samplers must be among"),
        ("samplers", ["top_k", "top_k"], "samplers names top_k more than once"),
        ("rotate_kv", True, "rotate_kv needs n_keep"),
        (
            "response_format",
            {"type": "xml"},
            "response_format.type: 'xml' is none of 'json_object'",
        ),
        ("stop", 5, "stop must be a list of strings, got 5"),
        ("stop", ["\ud800"], "stop is not Unicode text"),
        ("stop_token_ids", 5, "stop_token_ids must be a list of token ids, got 5"),
        ("allowed_token_ids", 5, "allowed_token_ids must be a list of token ids, got 5"),
        ("bad_words", 5, "bad_words must be a list of strings, got 5"),
        ("logit_bias", [1], "logit_bias must be a dict of token ids and numbers, got [1]"),
        ("samplers", 5, "samplers must be a list of stages, got 5"),
        ("samplers", "top_k", "samplers must be a list of stages, got 'top_k'"),
        ("ignore_eos", 5, "ignore_eos must be True or False, got 5"),
        ("include_stop_str_in_output", "no", "include_stop_str_in_output must be True or False"),
        ("response_format", 5, "response_format: Expected `object | null`, got `int`"),
        ("structured_outputs", 5, "structured_outputs: Expected `object | null`, got `int`"),
        ("structured_outputs", {"json": "{"}, "structured_outputs.json is not valid JSON"),
        ("structured_outputs", {"json": "[]"}, "structured_outputs.json must be a JSON object"),
        ("structured_outputs", {"json": {"const": 2**53 + 1}}, "structured_outputs.json: 9007199"),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}, "structured_outputs takes exactly"),
        ("structured_outputs", {"json": object()}, "structured_outputs must be what JSON can say"),
        ("structured_outputs", {"choice": []}, "structured_outputs.choice is empty"),
        ("structured_outputs", {"regex": "a" * 65_537}, "structured_outputs.regex has over"),
    ],
)
def test_refusals_name_the_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})
    assert refused.value.message.startswith(message)
    assert str(refused.value.param).split(".")[0] == field


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    params = SamplingParams(
        max_tokens=np.int64(3), seed=np.uint64(2**64 - 1), top_k=np.int32(-1),
        stop_token_ids=np.array([5, 6]), allowed_token_ids=np.array([7]),
    )  # fmt: skip
    plain = SamplingParams(
        max_tokens=3, seed=2**64 - 1, top_k=0, stop_token_ids=[5, 6], allowed_token_ids=[7]
    )
    assert params == plain and type(params.max_tokens) is int
    with pytest.raises(InvalidRequest, match="max_tokens must be a whole number"):
        SamplingParams(max_tokens=np.float64(3))


def test_none_asks_for_the_default() -> None:
    """As those who come from vLLM write it."""
    names = ("n", "min_tokens", "stop", "stop_token_ids", "logit_bias", "bad_words", "ignore_eos")
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()
    assert SamplingParams(max_tokens=None).max_tokens is None


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


def test_a_bound_of_the_dynamic_temperature_names_its_part() -> None:
    with pytest.raises(InvalidRequest, match="dynamic_temperature.range must be between 0 and 2"):
        SamplingParams(dynamic_temperature={"range": 3})


def test_a_field_whose_stage_is_not_named_is_refused() -> None:
    assert SamplingParams(samplers=["top_k"], temperature=0, top_k=3).samplers == ["top_k"]
    with pytest.raises(InvalidRequest, match="top_p does not act: samplers does not name top_p"):
        SamplingParams(samplers=["top_k"], top_k=3, top_p=0.5)


def test_the_rarer_stages_reach_the_sampler() -> None:
    params = SamplingParams(
        typical_p=0.9, top_n_sigma=1.5, xtc_probability=0.5, dry_multiplier=0.8,
        dynamic_temperature={"range": 0.5}, allowed_token_ids=[1, 2], bad_words=["no"],
        samplers=["typical_p", "top_n_sigma", "xtc", "dry", "dynamic_temperature",
                  "allowed_token_ids", "bad_words"],
        return_sampler_trace=True, prompt_logprobs=3, n_keep=8, rotate_kv=True,
    )  # fmt: skip
    sampling = params.sampling(seed=1)
    assert (sampling.typical_p, sampling.top_n_sigma) == (0.9, 1.5)
    assert (sampling.xtc.probability, sampling.xtc.threshold) == (0.5, 0.1)
    assert (sampling.dry.multiplier, sampling.dry.base, sampling.dry.allowed_length) == (
        0.8, 1.75, 2,
    )  # fmt: skip
    assert not sampling.dry.HasField("last_n")
    dynamic = sampling.dynamic_temperature
    assert (dynamic.range, dynamic.exponent) == (0.5, 1.0)
    assert sampling.allowed_token_ids == b"\1\0\0\0\2\0\0\0" and sampling.return_sampler_trace
    assert list(sampling.samplers) == list(params.samplers)
    limits = params.limits()
    assert (limits.prompt_logprobs, limits.n_keep, limits.rotate_kv) == (3, 8, True)
    text = params.text_options()
    assert list(text.bad_words) == ["no"] and list(text.dry_breakers) == ["\n", ":", '"', "*"]
    assert not SamplingParams().sampling(1).HasField("dry")
    assert not SamplingParams(dry_multiplier=1, dry_penalty_last_n=0).sampling(1).HasField("dry")


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({}, "NONE", ""),
        ({"response_format": {"type": "text"}}, "NONE", ""),
        ({"response_format": {"type": "json_object"}}, "JSON_SCHEMA", "{}"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            "JSON_SCHEMA",
            '{"a":1}',
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": POINT}}},
            "JSON_SCHEMA",
            '{"properties":{"x":{}},"additionalProperties":false}',
        ),
        ({"structured_outputs": {"json": POINT}}, "JSON_SCHEMA", '{"properties":{"x":{}}}'),
        ({"structured_outputs": {"json": '{"b": 2}'}}, "JSON_SCHEMA", '{"b":2}'),
        ({"structured_outputs": {"json_object": True}}, "JSON_SCHEMA", "{}"),
        ({"structured_outputs": {"regex": "a+", "json": None}}, "REGEX", "a+"),
        ({"structured_outputs": {"choice": ["x", "y"]}}, "CHOICE", '["x","y"]'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "LARK", 'start: "a"'),
    ],
)
def test_the_form_of_an_answer_is_a_grammar(fields: dict[str, Any], kind: str, text: str) -> None:
    grammar = SamplingParams(**fields).text_options().grammar
    assert (grammar.Kind.Name(grammar.kind), grammar.text) == (kind, text)
