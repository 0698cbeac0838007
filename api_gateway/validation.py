"""Bounds and meaning of a typed request. Every check raises InvalidRequest that names the field."""

from __future__ import annotations

import re
from typing import Any

from api_gateway.checks import (
    check_bound,
    check_count,
    check_text,
    check_texts,
    check_token_ids,
    refuse,
)
from api_gateway.messages import check_conversation
from api_gateway.schema import ChatRequest, CompletionRequest, EmbeddingRequest, Fields, Routing
from protos import limits

BOUNDED = (
    "max_tokens", "min_tokens", "temperature", "top_p", "min_p", "typical_p",
    "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "n", "n_keep", "prompt_logprobs",
)  # fmt: skip
SALT = re.compile(rf"[!-~]{{1,{limits.MAX_CACHE_SALT_CHARS}}}")


def check_routing(body: Routing) -> None:
    """Check what every request to a model has."""
    check_bound("priority", body.priority)
    check_bound("timeout_ms", body.timeout_ms)
    if body.cache_salt is not None and not SALT.fullmatch(body.cache_salt):
        most = limits.MAX_CACHE_SALT_CHARS
        raise refuse(f"cache_salt must be 1 to {most} characters of ASCII, no blanks", "cache_salt")
    check_notes(body)


def check_notes(body: Routing) -> None:
    """Check what a client notes for itself."""
    for name in ("prompt_cache_key", "safety_identifier"):
        if len(getattr(body, name) or "") > (most := limits.MAX_NOTE_CHARS):
            raise refuse(f"{name} has more than {most} characters", name)
    pairs = body.metadata or {}
    check_count(pairs, limits.MAX_METADATA, "metadata")
    most, chars = limits.MAX_METADATA_KEY_CHARS, limits.MAX_METADATA_CHARS
    if any(not 0 < len(key) <= most or len(value) > chars for key, value in pairs.items()):
        why = f"metadata: a key has 1 to {most} characters, a value at most {chars}"
        raise refuse(why, "metadata")


def check_fields(body: Fields) -> None:
    """Check what both kinds of request for text share."""
    check_routing(body)
    if body.max_tokens == -1:  # as llama.cpp has it
        body.max_tokens = None
    draws_nothing = isinstance(body, CompletionRequest) and body.draws_nothing
    for name in BOUNDED:
        if not (name == "max_tokens" and draws_nothing):
            check_bound(name, getattr(body, name))
    for name in ("top_k", "top_n_sigma"):  # -1 is off
        value = getattr(body, name)
        if value not in (None, -1) and (why := limits.violation(name, value)):
            raise refuse(why.replace("be between", "be -1 or between", 1), name)
    if body.min_tokens and body.max_tokens is not None and body.min_tokens > body.max_tokens:
        raise refuse(
            f"min_tokens {body.min_tokens} is more than max_tokens {body.max_tokens}", "min_tokens"
        )
    check_stream(body)
    check_stops(body)
    check_words(body)
    check_samplers(body)
    if body.rotate_kv and body.n_keep is None:
        raise refuse("rotate_kv needs n_keep", "rotate_kv")


def check_stream(body: Fields) -> None:
    """Check the fields that make sense in a stream only, or in whole replies only."""
    if body.stream_options is not None and not body.stream:
        raise refuse("stream_options is only for stream=true", "stream_options")
    if body.return_progress and not body.stream:
        raise refuse("return_progress is only for stream=true", "return_progress")
    if body.prompt_logprobs is not None and body.stream:
        raise refuse("prompt_logprobs is only for stream=false", "prompt_logprobs")


def check_stops(body: Fields) -> None:
    if isinstance(body.stop, str):
        check_text(body.stop, "stop", limits.MAX_STOP_STRING_CHARS)
    else:
        most = limits.MAX_STOP_STRINGS
        check_texts(body.stop or [], "stop", most, limits.MAX_STOP_STRING_CHARS)
    ids = body.stop_token_ids or []
    check_count(ids, limits.MAX_STOP_TOKEN_IDS, "stop_token_ids")
    check_token_ids(ids, "stop_token_ids")


def check_words(body: Fields) -> None:
    """Check what the sampler is told of single tokens and words."""
    check_logit_bias(body.logit_bias or {})
    words, breakers = body.bad_words or [], body.dry_sequence_breakers or []
    check_texts(words, "bad_words", limits.MAX_BAD_WORDS, limits.MAX_BAD_WORD_CHARS)
    most, chars = limits.MAX_DRY_BREAKERS, limits.MAX_DRY_BREAKER_CHARS
    check_texts(breakers, "dry_sequence_breakers", most, chars)
    if body.allowed_token_ids is not None:
        if not body.allowed_token_ids:
            raise refuse("allowed_token_ids is empty: no token could be drawn", "allowed_token_ids")
        check_count(body.allowed_token_ids, limits.MAX_ALLOWED_TOKEN_IDS, "allowed_token_ids")
        check_token_ids(body.allowed_token_ids, "allowed_token_ids")


def check_samplers(body: Fields) -> None:
    """Check the chain: known stages, and one for everything that is asked for."""
    if (dynamic := body.dynamic_temperature) is not None:
        check_bound("dynamic_temperature.range", dynamic.range)
        check_bound("dynamic_temperature.exponent", dynamic.exponent)
    acting = limits.acting(body)
    if (why := limits.samplers_violation(body.samplers or [], acting)) is not None:
        raise refuse(why, "samplers")


def check_logit_bias(biases: dict[str, float]) -> None:
    check_count(biases, limits.MAX_LOGIT_BIASES, "logit_bias")
    for key, bias in biases.items():
        is_id = key.isascii() and key.isdigit() and len(key) <= 10
        if not is_id or int(key) > limits.MAX_U32:
            raise refuse(f"logit_bias: {key[:20]!r} is not a token id", "logit_bias")
        check_bound("logit_bias", bias)


def check_chat(body: ChatRequest) -> None:
    """Check a chat request and bring its messages to plain text contents."""
    check_bound("max_completion_tokens", body.max_completion_tokens, "max_tokens")
    if None not in (body.max_tokens, body.max_completion_tokens):
        if body.max_tokens != body.max_completion_tokens:
            raise refuse("max_tokens and max_completion_tokens disagree", "max_completion_tokens")
    if body.max_tokens is None:
        body.max_tokens = body.max_completion_tokens
    check_fields(body)
    if body.thinking is not None and body.reasoning_effort is not None:
        if (body.thinking.type == "enabled") != (body.reasoning_effort != "none"):
            raise refuse("thinking and reasoning_effort disagree", "thinking")
    check_bound("thinking_token_budget", body.thinking_token_budget)
    if body.n_keep is not None and body.thinking_token_budget not in (None, -1):
        why = "thinking_token_budget excludes n_keep, which drops thoughts that are counted"
        raise refuse(why, "thinking_token_budget")
    check_bound("top_logprobs", body.top_logprobs, "logprobs")
    if body.top_logprobs and not body.logprobs:
        raise refuse("top_logprobs needs logprobs=true", "top_logprobs")
    check_conversation(body)


def check_completion(body: CompletionRequest) -> None:
    """Check a completion request and bring `prompt` to a list of strings or lists of ids."""
    check_fields(body)
    check_bound("logprobs", body.logprobs)
    body.prompt = prompts = prompts_of(body.prompt, "prompt")
    if len(prompts) * (body.n or 1) > limits.MAX_PROMPT_CHOICES:
        raise refuse(f"prompts times n is more than {limits.MAX_PROMPT_CHOICES}", "prompt")


def check_embedding(body: EmbeddingRequest) -> None:
    """Check an embedding request and bring `input` to a list of strings or lists of ids."""
    check_routing(body)
    check_bound("dimensions", body.dimensions)
    body.input = inputs = prompts_of(body.input, "input")
    check_count(inputs, limits.MAX_EMBEDDING_INPUTS, "input")


def prompts_of(given: str | list[Any], param: str) -> list[Any]:
    """Return the prompts of any of the four shapes OpenAI allows."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise refuse(f"{param} is empty", param)
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise refuse(f"{param} mixes strings, ids and lists", param, "invalid_type")
    if kinds == {int}:
        check_token_ids(given, param)
        return [given]
    if kinds == {list}:
        for index, ids in enumerate(given):
            if not ids:
                raise refuse(f"{param}[{index}] is empty", f"{param}[{index}]")
            check_token_ids(ids, f"{param}[{index}]")
    return given
