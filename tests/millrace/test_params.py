"""SamplingParams: what it refuses, and what it says to each tier."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidRequest
from millrace.params import SamplingParams
from protos.common_pb2 import ModelInfo

INFO = ModelInfo(id="m")
CYCLE: dict[str, Any] = {}
CYCLE["inner"] = CYCLE
POINT = {"properties": {"x": {"format": "password"}}}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature must be between 0 and 2, got -0.1"),
        ("temperature", float("nan"), "temperature must be a finite number"),
        ("temperature", "hot", "temperature: Expected `float | null`, got `str`"),
        ("top_p", 1.5, "top_p must be between 0 and 1"),
        ("temperature", 10**400, "temperature: Number out of range"),
        ("seed", -(10**400), "seed must be between"),
        ("top_k", -2, "top_k must be -1 or between 0 and"),
        ("top_n_sigma", -2, "top_n_sigma must be -1 or between 0 and 100, got -2"),
        ("top_k", 1.5, "top_k: Expected `int | null`, got `float`"),
        ("max_tokens", 0, "max_tokens must be between 1 and 16777216, got 0"),
        ("max_tokens", True, "max_tokens: Expected `int | null`, got `bool`"),
        ("n", 129, "n must be between 1 and 128"),
        ("logprobs", 21, "logprobs must be between 0 and 20"),
        ("seed", 2**64, "seed must be between"),
        ("min_tokens", 17, "min_tokens 17 is more than max_tokens 16"),
        ("stop", [""], "stop[0] is empty"),
        ("stop", ["a"] * 17, "stop has 17 entries, 16 are allowed"),
        ("stop_token_ids", [-1], "stop_token_ids[0] is not a token id"),
        ("stop_token_ids", [1] * 257, "stop_token_ids has 257 entries, 256 are allowed"),
        ("logit_bias", {1: 101}, "logit_bias must be between -100 and 100"),
        ("logit_bias", {"a": 1}, "logit_bias: 'a' is not a token id"),
        ("typical_p", 1.1, "typical_p must be between 0 and 1"),
        ("dry_allowed_length", 2.5, "dry_allowed_length: Expected `int | null`"),
        ("dry_penalty_last_n", -2, "dry_penalty_last_n must be between -1 and"),
        ("prompt_logprobs", 21, "prompt_logprobs must be between 0 and 20"),
        ("bad_words", ["a" * 257], "bad_words[0] has over 256 characters"),
        ("bad_words", "abc", "bad_words: Expected `array | null`, got `str`"),
        ("allowed_token_ids", [], "allowed_token_ids is empty"),
        ("dynamic_temperature", {"exponent": 1}, "dynamic_temperature.range is required"),
        ("samplers", ["top_k", "heat"], "samplers must be among"),
        ("samplers", ["top_k", "top_k"], "samplers names top_k more than once"),
        ("rotate_kv", True, "rotate_kv needs n_keep"),
        (
            "response_format",
            {"type": "xml"},
            "response_format.type: 'xml' is none of 'json_object'",
        ),
        ("stop", 5, "stop: Expected `str | array | null`, got `int`"),
        ("stop", ["\ud800"], "stop[0] is not Unicode text"),
        ("stop_token_ids", 5, "stop_token_ids: Expected `array | null`, got `int`"),
        ("allowed_token_ids", 5, "allowed_token_ids: Expected `array | null`"),
        ("bad_words", 5, "bad_words: Expected `array | null`, got `int`"),
        ("logit_bias", [1], "logit_bias: Expected `object | null`, got `array`"),
        ("samplers", 5, "samplers: Expected `array | null`, got `int`"),
        ("samplers", "top_k", "samplers: Expected `array | null`, got `str`"),
        ("ignore_eos", 5, "ignore_eos: Expected `bool | null`, got `int`"),
        ("include_stop_str_in_output", "no", "include_stop_str_in_output: Expected `bool"),
        ("response_format", 5, "response_format: Expected `object | null`, got `int`"),
        ("structured_outputs", 5, "structured_outputs: Expected `object | null`, got `int`"),
        ("structured_outputs", {"json": "{"}, "structured_outputs.json is not valid JSON"),
        ("structured_outputs", {"json": "[]"}, "structured_outputs.json must be a JSON object"),
        ("structured_outputs", {"json": {"const": 2**53 + 1}}, "structured_outputs.json: 9007199"),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}, "structured_outputs takes exactly"),
        ("structured_outputs", {"json": object()}, "structured_outputs must be what JSON can say"),
        ("structured_outputs", {"json": CYCLE}, "structured_outputs must be what JSON can say"),
        ("logit_bias", {(1, 2): 1}, "logit_bias: '(1, 2)' is not a token id"),
        ("structured_outputs", {"choice": []}, "structured_outputs.choice is empty"),
        ("structured_outputs", {"regex": "a" * 65_537}, "structured_outputs.regex has over"),
    ],
)
def test_refusals_name_the_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})
    assert refused.value.message.startswith(message)
    assert re.split(r"[.\[]", str(refused.value.param))[0] == field


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(
        max_tokens=np.int64(3), seed=np.uint64(2**64 - 1), top_k=np.int32(-1),
        stop_token_ids=np.array([5, 6]), allowed_token_ids=np.array([7]),
    )  # fmt: skip
    plain = SamplingParams(
        max_tokens=3, seed=2**64 - 1, top_k=-1, stop_token_ids=[5, 6], allowed_token_ids=[7]
    )
    assert params == plain and type(params.max_tokens) is int
    for whole in (np.float64(3), np.array(3), 3.0):
        assert (params := SamplingParams(n=whole)).n == 3 and type(params.n) is int
    assert SamplingParams(temperature=np.float32(0.5)).temperature == 0.5
    given = {"stop_token_ids": np.array([5]), "temperature": np.array(0.5), "ignore_eos": np.True_}
    one = SamplingParams(**given)
    assert (one.stop_token_ids, one.temperature, one.ignore_eos) == ([5], 0.5, True)


def test_params_can_be_copied_compared_and_sent() -> None:
    params = SamplingParams(stop=("a", "b"), logit_bias={7: 1.0}, response_format={"type": "text"})
    again = pickle.loads(pickle.dumps(params))  # noqa: S301
    assert again == params == copy.deepcopy(params) and again.body == params.body
    assert replace(params, n=2).body.n == 2
    assert SamplingParams(**asdict(params)) == params


def test_none_asks_for_the_default() -> None:
    """As those who come from vLLM write it."""
    names = ("n", "min_tokens", "stop", "stop_token_ids", "logit_bias", "bad_words", "ignore_eos")
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()
    assert SamplingParams(max_tokens=None).max_tokens is None


def test_what_is_unset_is_left_to_the_model_folder() -> None:
    sampling = SamplingParams().request(INFO, "r", 5).sampling
    assert not sampling.HasField("temperature")
    assert not sampling.HasField("top_k")
    assert sampling.seed == 5
    assert SamplingParams(seed=-1).request(INFO, "r", 6).sampling.seed == 6  # as in vLLM
    assert SamplingParams().request(INFO, "r", 1).limits.max_tokens == 16
    assert not SamplingParams(max_tokens=None).request(INFO, "r", 1).limits.HasField("max_tokens")
    assert not SamplingParams().request(INFO, "r", 1).limits.HasField("logprobs")


def test_unknown_fields_that_are_null_ask_for_nothing() -> None:
    """As `model_dump` of others' types writes them."""
    params = SamplingParams(response_format={"type": "json_object", "other": None})
    assert params.request(INFO, "r", 1).text.grammar.text == "{}"


def test_every_field_reaches_its_tier() -> None:
    params = SamplingParams(
        n=2, temperature=0.5, top_k=-1, seed=-2, logprobs=0, stop="end", stop_token_ids=[7, 258],
        ignore_eos=True, logit_bias={3: -1.5}, include_stop_str_in_output=True,
        skip_special_tokens=False, min_tokens=4,
    )  # fmt: skip
    sampling = params.request(INFO, "r", 5).sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.5, 0, 2**64 - 2)
    assert [(b.token_id, b.bias) for b in sampling.logit_bias] == [(3, -1.5)]
    limits = params.request(INFO, "r", 1).limits
    assert (limits.n, limits.logprobs, limits.min_tokens) == (2, 0, 4)
    assert limits.HasField("logprobs")
    text = params.request(INFO, "r", 1).text
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
    sampling = params.request(INFO, "r", 1).sampling
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
    limits = params.request(INFO, "r", 1).limits
    assert (limits.prompt_logprobs, limits.n_keep, limits.rotate_kv) == (3, 8, True)
    text = params.request(INFO, "r", 1).text
    assert list(text.bad_words) == ["no"] and list(text.dry_breakers) == ["\n", ":", '"', "*"]
    assert not SamplingParams().request(INFO, "r", 1).sampling.HasField("dry")
    assert (
        not SamplingParams(dry_multiplier=1, dry_penalty_last_n=0)
        .request(INFO, "r", 1)
        .sampling.HasField("dry")
    )


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
    grammar = SamplingParams(**fields).request(INFO, "r", 1).text.grammar
    assert (grammar.Kind.Name(grammar.kind), grammar.text) == (kind, text)
