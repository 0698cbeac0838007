"""The OpenAPI 3.1 document: made from the types that read the bodies and the table of limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import orjson

from api_gateway import reply_schema as replies
from api_gateway import schema
from api_gateway.anthropic.schema import MessagesRequest, Prompted
from api_gateway.asgi import Call
from api_gateway.health import build_version
from api_gateway.messages import RESERVED_KWARGS, TEXTS
from api_gateway.responses.schema import ResponseRequest
from protos import limits

Schema = dict[str, Any]
ERRORS = (400, 401, 403, 404, 408, 413, 422, 429, 431, 499, 500, 503)
REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """What a route takes and gives."""

    summary: str
    reply: type | None
    """None for what no type of ours describes."""
    body: type | None = None
    other_body: type | None = None
    """A second form of the body."""
    is_streamable: bool = False
    is_public: bool = False
    other_status: int | None = None
    """A second status with the same reply."""
    error: type = replies.ErrorReply
    kind: str = "application/json"
    """Of the reply."""


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a conversation", replies.ChatReply, schema.ChatRequest, is_streamable=True
    ),
    ("POST", "/v1/completions"): Operation(
        "Continue prompts", replies.CompletionReply, schema.CompletionRequest, is_streamable=True
    ),
    ("POST", "/v1/responses"): Operation(
        "Answer a conversation, in OpenAI's newer form", replies.ResponseReply, ResponseRequest,
        is_streamable=True,
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer a conversation, in Anthropic's form", replies.MessageReply, MessagesRequest,
        is_streamable=True, error=replies.MessageErrorReply,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count a conversation's tokens, in Anthropic's form", replies.MessageTokens, Prompted,
        error=replies.MessageErrorReply,
    ),
    ("POST", "/v1/embeddings"): Operation(
        "Turn inputs into vectors", replies.EmbeddingsReply, schema.EmbeddingRequest
    ),
    ("POST", "/v1/chat/completions/input_tokens"): Operation(
        "Count a conversation's tokens", replies.TokenCount, schema.ChatRequest
    ),
    ("POST", "/v1/completions/input_tokens"): Operation(
        "Count the tokens of prompts", replies.TokenCount, schema.CompletionRequest
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Count the tokens of a request for a response", replies.TokenCount, ResponseRequest
    ),
    ("POST", "/tokenize"): Operation("Text to ids", replies.Tokens, schema.TokenizeRequest),
    ("POST", "/detokenize"): Operation("Ids to text", replies.Prompt, schema.DetokenizeRequest),
    ("POST", "/apply-template"): Operation(
        "Render a conversation", replies.Prompt, schema.ChatPrompt
    ),
    ("GET", "/tokenizer_info"): Operation("Look at the tokenizer", replies.TokenizerInfo),
    ("GET", "/v1/models"): Operation("List the models", replies.ModelList),
    ("GET", "/v1/models/{name}"): Operation("Look at a model", replies.ModelObject),
    ("POST", "/v1/requests/explain"): Operation(
        "Say what a request would cost", replies.Explanation, schema.ChatRequest,
        schema.CompletionRequest,
    ),
    ("GET", "/v1/requests/{id}"): Operation("Look at a live request", replies.RequestState),
    ("POST", "/v1/requests/{id}/cancel"): Operation("End a live request", replies.Cancelled),
    ("GET", "/v1/cache"): Operation("Look at the prefix caches", replies.CacheReply),
    ("POST", "/v1/cache/reset"): Operation("Empty the prefix caches", replies.CacheReply),
    ("GET", "/live"): Operation("Whether the process answers", replies.Live, is_public=True),
    ("GET", "/ready"): Operation(
        "Whether it can serve", replies.Ready, is_public=True, other_status=503
    ),
    ("GET", "/health"): Operation("As /ready", replies.Ready, is_public=True, other_status=503),
    ("GET", "/version"): Operation("Which build it is", replies.Version, is_public=True),
    ("GET", "/metrics"): Operation(
        "What Prometheus scrapes", None, is_public=True, kind="text/plain"
    ),
    ("GET", "/openapi.json"): Operation("This document", None, is_public=True),
    ("GET", "/"): Operation("A page to chat on", None, is_public=True, kind="text/html"),
}  # fmt: skip
BOUND_NAMES = {
    "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "top_logprobs": "logprobs", "Thinking.budget_tokens": "thinking_token_budget",
    "DynamicTemperature.range": "dynamic_temperature.range",
    "DynamicTemperature.exponent": "dynamic_temperature.exponent",
}  # fmt: skip
"""Fields whose bounds stand under another name in the shared table."""
TOKEN_ID = {"type": "integer", "minimum": 0, "maximum": limits.MAX_U32}
TOKEN_IDS = {"items": TOKEN_ID}
NAME = "[A-Za-z0-9_-]"


def word(letters: str, max_chars: int) -> Schema:
    return {"pattern": f"^{letters}{{1,{max_chars}}}$"}


def text(max_chars: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": max_chars}


ID_LISTS = {"items": {"anyOf": [{"type": "string"}, TOKEN_ID, {
    "type": "array", "minItems": 1, "items": TOKEN_ID}]}, "minItems": 1}  # fmt: skip
STOPS = {"maxItems": limits.MAX_STOP_STRINGS, "items": text(limits.MAX_STOP_STRING_CHARS)}
LENGTH = {"minimum": -1, "maximum": int(limits.LIMITS["max_tokens"].high)}
RULES: dict[str, dict[str, Schema]] = {
    # field -> type -> what holds for a value of that type
    "top_k": {"integer": {"minimum": -1, "maximum": limits.MAX_U32}},
    "top_n_sigma": {"number": {
        "minimum": -1,
        "maximum": limits.LIMITS["top_n_sigma"].high,
        "not": {"exclusiveMinimum": -1, "exclusiveMaximum": 0},
    }},
    "cache_salt": {"string": word("[!-~]", limits.MAX_CACHE_SALT_CHARS)},
    "metadata": {
        "object": {
            "maxProperties": limits.MAX_METADATA,
            "propertyNames": {"minLength": 1, "maxLength": limits.MAX_METADATA_KEY_CHARS},
            "additionalProperties": {"type": "string", "maxLength": limits.MAX_METADATA_CHARS},
        }
    },
    "prompt_cache_key": {"string": {"maxLength": limits.MAX_NOTE_CHARS}},
    "safety_identifier": {"string": {"maxLength": limits.MAX_NOTE_CHARS}},
    "request_id": {"string": word("[A-Za-z0-9_.:-]", limits.MAX_REQUEST_ID_CHARS)},
    "stop": {"string": text(limits.MAX_STOP_STRING_CHARS), "array": STOPS},
    "stop_sequences": {"array": STOPS},
    "stop_token_ids": {"array": {"maxItems": limits.MAX_STOP_TOKEN_IDS, **TOKEN_IDS}},
    "allowed_token_ids": {
        "array": {"minItems": 1, "maxItems": limits.MAX_ALLOWED_TOKEN_IDS, **TOKEN_IDS}
    },
    "tokens": {"array": {"maxItems": limits.MAX_CONVERTED_TOKENS, **TOKEN_IDS}},
    "bad_words": {
        "array": {"maxItems": limits.MAX_BAD_WORDS, "items": text(limits.MAX_BAD_WORD_CHARS)}
    },
    "dry_sequence_breakers": {
        "array": {
            "maxItems": limits.MAX_DRY_BREAKERS,
            "items": text(limits.MAX_DRY_BREAKER_CHARS),
        }
    },
    "samplers": {"array": {"items": {"enum": list(limits.STAGES)}, "uniqueItems": True}},
    "logit_bias": {
        "object": {
            "maxProperties": limits.MAX_LOGIT_BIASES,
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {
                "type": "number",
                "minimum": limits.LIMITS["logit_bias"].low,
                "maximum": limits.LIMITS["logit_bias"].high,
            },
        }
    },
    "chat_template_kwargs": {
        "object": {
            "maxProperties": limits.MAX_TEMPLATE_KWARGS,
            "propertyNames": {"not": {"enum": sorted(RESERVED_KWARGS)}, "pattern": "^[^_]"},
        }
    },
    "messages": {"array": {"minItems": 1, "maxItems": limits.MAX_MESSAGES}},
    "tools": {"array": {"maxItems": limits.MAX_TOOLS}},
    "prompt": {"array": ID_LISTS},
    "EmbeddingRequest.input": {"array": {**ID_LISTS, "maxItems": limits.MAX_EMBEDDING_INPUTS}},
    "ResponseRequest.input": {"array": {"minItems": 1, "maxItems": limits.MAX_MESSAGES}},
    "choice": {"array": {"minItems": 1, "maxItems": limits.MAX_CHOICES}},
    "regex": {"string": text(limits.MAX_GRAMMAR_CHARS)},
    "grammar": {"string": text(limits.MAX_GRAMMAR_CHARS)},
    "ChatRequest.max_tokens": {"integer": {**LENGTH, "not": {"const": 0}}},
    "CompletionRequest.max_tokens": {"integer": LENGTH},  # 0 with echo: the prompt alone
    "Function.name": {"string": word(NAME, limits.MAX_TOOL_NAME_CHARS)},
    "OfferedTool.name": {"string": word(NAME, limits.MAX_TOOL_NAME_CHARS)},
    "JsonSchema.name": {"string": word(NAME, limits.MAX_TOOL_NAME_CHARS)},
    "Message.content": {"array": {
        "maxItems": limits.MAX_CONTENT_PARTS,
        "items": {"anyOf": [{
            "type": "object",
            "properties": {"type": {"const": kind}, kind: {"type": "string"}},
            "required": ["type", kind],
            "additionalProperties": False,
        } for kind in TEXTS]},
    }},
}  # fmt: skip


class OpenApi:
    """Serves the document, made once and before anybody asks."""

    def __init__(self) -> None:
        self._body = encoded_document()

    async def show(self, call: Call) -> None:
        await call.reply(200, self._body, b"application/json", [])


@cache
def encoded_document() -> bytes:
    return orjson.dumps(document())


def document() -> Schema:
    """Return the whole document."""
    types: set[type] = set()
    for operation in OPERATIONS.values():
        told = (operation.reply, operation.error, operation.body, operation.other_body)
        types |= {cls for cls in told if cls is not None}
    ordered = sorted(types, key=lambda cls: cls.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=REF)
    for name, described in components.items():
        for field, shape in described.get("properties", {}).items():
            bound_field(name, field, shape)
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = described_operation(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millrace", "version": build_version()},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def bound_field(owner: str, field: str, shape: Schema) -> None:
    """Add to a field's schema what the checks hold it to."""
    rules: dict[str, Schema] = {}
    bound = BOUND_NAMES.get(field) or BOUND_NAMES.get(f"{owner}.{field}") or field
    if bound in limits.LIMITS and field not in RULES:
        low, high = limits.LIMITS[bound]
        rules = {
            "integer": {"minimum": int(low), "maximum": int(high)},
            "number": {"minimum": low, "maximum": high},
        }
    rules |= {**RULES.get(field, {}), **RULES.get(f"{owner}.{field}", {})}
    for variant in shape.get("anyOf", [shape]):
        variant |= rules.get(variant.get("type", ""), {})


def ref(cls: type) -> Schema:
    return {"$ref": REF.format(name=cls.__name__)}


def content(shape: Schema, kind: str = "application/json") -> Schema:
    return {kind: {"schema": shape}}


def described_operation(path: str, operation: Operation) -> Schema:
    shown = content(ref(operation.reply) if operation.reply else {}, operation.kind)
    if operation.is_streamable:
        shown["text/event-stream"] = {}  # readers differ in what a schema of one is of
    errors = [500] if operation.is_public else ERRORS
    responses = {
        str(status): {"description": "An error", "content": content(ref(operation.error))}
        for status in errors
    }
    responses["200"] = {"description": "The reply", "content": shown}
    if operation.other_status is not None:
        responses[str(operation.other_status)] = {"description": "Not now", "content": shown}
    described: Schema = {"summary": operation.summary, "responses": responses}
    if operation.is_public:
        described["security"] = []
    if operation.body is not None:
        forms = [ref(cls) for cls in (operation.body, operation.other_body) if cls is not None]
        shape = forms[0] if len(forms) == 1 else {"oneOf": forms}
        described["requestBody"] = {"required": True, "content": content(shape)}
    names = [name for name in ("id", "name") if f"{{{name}}}" in path]
    if names:
        schema = {"type": "string", "minLength": 1}
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in names
        ]
    return described
