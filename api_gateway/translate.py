"""A checked request → the text tier's `TextRequest`s, and what the reply must look like."""

from __future__ import annotations

import hmac
import secrets
import sys
from array import array
from dataclasses import dataclass

import msgspec
import orjson

from api_gateway.schema import ChatRequest, CompletionRequest, Fields
from api_gateway.validation import check_chat, check_completion
from protos.common_pb2 import Limits, LogitBias, SamplingParams
from protos.tokenizer_pb2 import ChatInput, TextOptions, TextRequest

SAMPLING = (
    "temperature", "top_p", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """One HTTP request for text: what goes down the line and how the reply is to be shown."""

    requests: list[TextRequest]
    model: str
    is_chat: bool
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    num_logprobs: int | None
    """Alternatives to show; None = no logprobs at all."""
    return_token_ids: bool
    timeout_s: float | None

    @property
    def num_choices(self) -> int:
        return sum(request.limits.n for request in self.requests)


def order_chat(body: ChatRequest, request_id: str, tenant: str, cache_secret: bytes = b"") -> Order:
    """Return the order of a chat request; raise InvalidRequest."""
    check_chat(body)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    request = text_request(body, request_id, tenant, num_logprobs)
    request.limits.cache_salt = salt(cache_secret, tenant, body.cache_salt or "")
    kwargs = body.chat_template_kwargs
    request.chat.CopyFrom(
        ChatInput(
            messages_json=msgspec.json.encode(body.messages),
            template_kwargs_json=orjson.dumps(kwargs) if kwargs else b"",
            no_generation_prompt=body.add_generation_prompt is False,
            continue_final_message=bool(body.continue_final_message),
        )
    )
    return order(body, [request], num_logprobs, is_chat=True)


def order_completion(
    body: CompletionRequest, request_id: str, tenant: str, cache_secret: bytes = b""
) -> Order:
    """Return the order of a completion request, one `TextRequest` a prompt."""
    requests = []
    for prompt in check_completion(body):
        request = text_request(body, request_id, tenant, body.logprobs)
        request.limits.cache_salt = salt(cache_secret, tenant, body.cache_salt or "")
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.prompt_token_ids = column(prompt)
        requests.append(request)
    return order(body, requests, body.logprobs, is_chat=False)


def order(
    body: Fields, requests: list[TextRequest], num_logprobs: int | None, is_chat: bool
) -> Order:
    options = body.stream_options
    return Order(
        requests=requests,
        model=body.model,
        is_chat=is_chat,
        is_stream=bool(body.stream),
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
        num_logprobs=num_logprobs,
        return_token_ids=bool(body.return_token_ids),
        timeout_s=body.timeout_ms / 1000 if body.timeout_ms is not None else None,
    )


def text_request(
    body: Fields, request_id: str, tenant: str, num_logprobs: int | None
) -> TextRequest:
    """Return what both kinds share; each prompt without a seed draws one of its own."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return TextRequest(
        request_id=request_id,
        model=body.model,
        limits=Limits(
            max_tokens=body.max_tokens,
            min_tokens=body.min_tokens or 0,
            n=body.n or 1,
            logprobs=num_logprobs,
            priority=body.priority or 0,
            tenant=tenant,
        ),
        sampling=sampling(body),
        text=TextOptions(
            stop=stops,
            include_stop=bool(body.include_stop_str_in_output),
            ignore_eos=bool(body.ignore_eos),
            keep_special_tokens=body.skip_special_tokens is False,
            stop_token_ids=body.stop_token_ids or [],
        ),
    )


def sampling(body: Fields) -> SamplingParams:
    """Return the parameters that were given; the text tier fills in the model's defaults."""
    seed = secrets.randbits(64) if body.seed is None else body.seed % 2**64
    params = SamplingParams(seed=seed)
    for name in SAMPLING:
        if (value := getattr(body, name)) is not None:
            setattr(params, name, value)
    if body.top_k is not None:
        params.top_k = max(0, body.top_k)  # -1 is vLLM's word for off
    for token_id, bias in (body.logit_bias or {}).items():
        params.logit_bias.append(LogitBias(token_id=int(token_id), bias=bias))
    return params


def salt(secret: bytes, tenant: str, given: str) -> bytes:
    """Return the salt of the prefix cache: a client can narrow its tenant's, never leave it."""
    key = secret or b"millrace prefix cache"  # without a secret all gateways must still agree
    return hmac.digest(key, f"{tenant}\0{given}".encode(), "sha256")[:16]


def column(ids: list[int]) -> bytes:
    """Return `ids` as little-endian u32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
