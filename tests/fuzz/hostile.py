"""Makes bad requests: bodies of every route, spoiled; bytes that are no JSON; strange calls."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

MODEL = "millrace-demo"
SAID = [{"role": "user", "content": "Hello"}]
SHORT = {"model": MODEL, "max_tokens": 4, "timeout_ms": 3000}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ASKED = {"model": MODEL, "max_output_tokens": 4, "timeout_ms": 3000}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
OFFERED = {"name": "f", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {**SHORT, "messages": SAID},
        {**SHORT, "messages": SAID, "tools": [TOOL], "tool_choice": "required"},
        {**SHORT, "messages": SAID, "response_format": FORM, "stream": True},
        {**SHORT, "messages": SAID, "logprobs": True, "top_logprobs": 3, "n": 2},
        {**SHORT, "messages": [*SAID, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "4"}]},
    ],
    "/v1/completions": [
        {**SHORT, "prompt": "Hello"},
        {**SHORT, "prompt": [1, 2, 3], "echo": True, "logprobs": 2},
        {**SHORT, "prompt": ["a", "b"], "stream": True, "stop": ["x"], "temperature": 1},
        {**SHORT, "prompt": "a", "prompt_logprobs": 1, "return_sampler_trace": True, "top_k": 3},
        {**SHORT, "prompt": "a", "structured_outputs": {"regex": "[ab]+"}},
    ],
    "/v1/responses": [
        {**ASKED, "input": "Hello", "include": ["message.output_text.logprobs"]},
        {**ASKED, "input": SAID, "tools": [FUNCTION], "tool_choice": "required", "stream": True},
        {**ASKED, "input": SAID, "text": {"format": {**FORM["json_schema"], "type": FORM["type"]}}},
        {**ASKED, "instructions": "a", "reasoning": {"effort": "low"}, "input": [
            *SAID, {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"}]},
        {**ASKED, "input": SAID, "tools": [
            {"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [FUNCTION]}]},
    ],
    "/v1/messages": [
        {**SHORT, "messages": SAID, "system": "a", "stop_sequences": ["x"]},
        {**SHORT, "messages": SAID, "tools": [OFFERED], "tool_choice": {"type": "any"},
         "stream": True},
        {**SHORT, "messages": SAID, "thinking": {"type": "enabled", "budget_tokens": 5},
         "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {**SHORT, "tools": [OFFERED, {**OFFERED, "name": "g", "defer_loading": True}],
         "system": [{"type": "text", "text": "a"}], "messages": [*SAID,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a", "signature": "b"},
                {"type": "redacted_thinking", "data": "a"}, {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "i", "is_error": True, "content": [
                    {"type": "text", "text": "4"}, {"type": "tool_reference", "tool_name": "g"}]},
                {"type": "text", "text": "a"}]}]},
        {**SHORT, "messages": [*SAID, {"role": "assistant", "content": "a"}]},
    ],
    "/v1/messages/count_tokens": [{"model": MODEL, "messages": SAID, "tools": [OFFERED]}],
    "/v1/embeddings": [{"model": MODEL, "input": ["a", "b"], "dimensions": 4}],
    "/v1/chat/completions/input_tokens": [{**SHORT, "messages": SAID}],
    "/v1/responses/input_tokens": [{**ASKED, "input": SAID}],
    "/v1/completions/input_tokens": [{**SHORT, "prompt": "a"}],
    "/v1/requests/explain": [{**SHORT, "prompt": "a"}, {**SHORT, "messages": SAID}],
    "/tokenize": [{"prompt": "Hello"}, {"messages": SAID, "return_token_strs": True}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/apply-template": [{"messages": SAID}],
    "/v1/requests/x/cancel": [{}],
    "/v1/cache/reset": [{}],
}  # fmt: skip
NAMES = [
    "model", "messages", "prompt", "input", "n", "max_tokens", "min_tokens", "temperature", "top_p",
    "top_k", "min_p", "typical_p", "top_n_sigma", "dynamic_temperature", "xtc_probability",
    "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "bad_words", "allowed_token_ids", "samplers", "seed", "n_keep", "rotate_kv",
    "stream", "stream_options", "stop", "stop_token_ids", "ignore_eos", "prompt_logprobs",
    "response_format", "structured_outputs", "tools", "tool_choice", "parallel_tool_calls",
    "reasoning_effort", "chat_template_kwargs", "continue_final_message", "logprobs", "echo",
    "priority", "cache_salt", "request_id", "session_id", "kv_transfer_params", "dimensions",
    "encoding_format", "pooling", "tokens", "instructions", "max_output_tokens", "text", "include",
    "reasoning", "metadata", "truncation", "store", "previous_response_id", "best_of", "suffix",
    "thinking", "system", "stop_sequences", "output_config", "role", "content", "type", "name",
    "input_schema", "tool_use_id", "tool_name", "defer_loading", "arguments",
    "nonsense", "__class__", "",
]  # fmt: skip
REGEXES = [
    "(a+)+$",
    "(a{1000}){1000}",
    "[",
    "(?=a)",
    "\\p{L}{0,9999}",
    "(" * 500,
    "\\1",
    "a" * 70000,
]
BAD_PATTERN = {"name": "x", "schema": {"pattern": "(", "type": "string"}}
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0,
    1e308, 5e-324, "", "a", "\0", "\ud7ff", "é" * 300, "x" * 70_000, "%s%n", "{{ 7*7 }}",
    "<|im_start|>system", "../../etc/passwd", [], {}, [[]], [{}], [None], [1, "a"], [-1],
    [2**32 - 1], [0] * 5000, ["a"] * 3000, {"a": 1}, {"1": 1e9}, {"type": "function"},
    {"type": "json_object"}, {"regex": "a"}, {"choice": ["a", "b"]}, {"json": "{"},
    {"grammar": "start: start"}, {"grammar": 'start: "a" | '}, {"range": 1},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}},
    {"type": "json_schema", "json_schema": BAD_PATTERN},
    *({"regex": regex} for regex in REGEXES),
]  # fmt: skip
PATHS = [
    "/", "//", "/v1", "/v1/models/" + "x" * 3000, "/v1/models/%00", "/v1/requests/%2e%2e",
    "/v1/requests/x", "/ui/..%2f..%2fetc%2fpasswd", "/openapi.json", "/metrics", "/v1/cache",
    "/v1/models", "/live", "/ready", "/v1/requests/" + "%F0%9F%98%80" * 40,
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"]


class Request(NamedTuple):
    """`leaves` = the client goes away after the first bytes of the reply."""

    method: str
    path: str
    content: bytes
    headers: dict[str, str]
    leaves: bool = False


def make(rng: random.Random) -> Request:
    """Return the next request."""
    kind = rng.random()
    if kind < 0.08:
        return Request(rng.choice(METHODS), rng.choice(PATHS), b"", headers(rng))
    path = rng.choice(list(BODIES))
    body = json.loads(json.dumps(rng.choice(BODIES[path])))
    if kind < 0.2:
        return Request("POST", path, junk(rng, body), headers(rng))
    if kind < 0.25:
        longer = {**body, "max_tokens": 200, "stream": True} if "max_tokens" in body else body
        return Request("POST", path, json.dumps(longer).encode(), {}, leaves=True)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        spoil(rng, body)
    return Request("POST", path, json.dumps(body).encode(), headers(rng))


def spoil(rng: random.Random, body: dict[str, Any]) -> None:
    """Change one thing, somewhere in the body."""
    place: Any = body
    while rng.random() < 0.4:
        inner = place.values() if isinstance(place, dict) else place
        deeper = [item for item in inner if isinstance(item, dict | list) and item]
        if not deeper:
            break
        place = rng.choice(deeper)
    value = copy.deepcopy(rng.choice(HOSTILE))
    if isinstance(place, list):
        place[rng.randrange(len(place))] = value
    elif place is body and rng.random() < 0.8:
        place[rng.choice(NAMES)] = value
    elif place and rng.random() < 0.3:
        del place[rng.choice(list(place))]
    else:
        place[rng.choice([*place, *NAMES])] = value


def junk(rng: random.Random, body: dict[str, Any]) -> bytes:
    """Return bytes that are nearly the body, or nothing like it."""
    text = json.dumps(body).encode()
    at = rng.randrange(len(text) + 1)
    makers: list[Callable[[], bytes]] = [
        lambda: text[:at],
        lambda: text[:at] + bytes([rng.randrange(256)]) + text[at:],
        lambda: b"[" * 100_000,
        lambda: b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        lambda: rng.randbytes(rng.randrange(2000)),
        lambda: text.replace(b"4", b"NaN"),
        lambda: text.replace(b"4", b"1e999"),
        lambda: text.replace(b"Hello", b"\\ud800"),
        lambda: text.replace(b"Hello", b"\xff\xfe"),
        lambda: b"",
        lambda: b"null",
        lambda: text + text,
        lambda: b" " * 200_000 + text,
    ]
    return rng.choice(makers)()


def headers(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.9:
        return {}
    return rng.choice(
        [
            {"x-request-id": "x" * 500},
            {"content-type": "text/plain"},
            {"authorization": "Bearer " + "x" * 4000},
            {"x-big": "x" * 20_000},
            {"host": "evil.example"},
            {"expect": "100-continue"},
            {"content-encoding": "gzip"},
        ]
    )
