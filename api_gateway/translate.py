"""A checked request → the text tier's `TextRequest`s, and what the reply must look like."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from api_gateway.checks import refuse
from api_gateway.sampling import dry_breakers, sampling, seed_of
from api_gateway.schema import (
    ChatPrompt,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Fields,
    Routing,
    TokenizeRequest,
)
from api_gateway.structure import RESPONSE, grammar_field, grammar_of
from api_gateway.tools import ToolPlan, plan_tools
from protos.columns import pack
from protos.common_pb2 import EMBED, LAST, MEAN, SCORE, Limits, ModelInfo, SamplingParams
from protos.json_fields import dumps
from protos.limits import MAX_REPEATED_BYTES
from protos.tokenizer_pb2 import ChatInput, TextOptions, TextRequest


class Kind(Enum):
    """Which route is answered."""

    CHAT = "chat"
    TEXT = "text"
    EMBEDDING = "embedding"
    RESPONSE = "response"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and for which model."""

    request_id: str
    tenant: str
    info: ModelInfo
    cache_secret: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One HTTP request to a model: what goes down the line and how the reply is to be shown."""

    requests: list[TextRequest]
    model: str
    kind: Kind
    timeout_s: float | None
    is_stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    num_logprobs: int | None = None
    """Alternatives to show; None = no logprobs at all."""
    num_prompt_logprobs: int | None = None
    return_token_ids: bool = False
    show_reasoning: bool = True
    show_progress: bool = False
    show_trace: bool = False
    tools: ToolPlan | None = None
    grammar_field: str = RESPONSE
    """Where the client has said what form the answer must have, if it has."""
    length_field: str = "max_tokens"
    """Where the client has said how long the answer may be, if it has."""
    has_echo: bool = False
    """Each prompt is repeated before its answers."""
    echoes: tuple[str, ...] = ()
    """The prompts as text, where they are to be repeated."""
    asked: dict[str, Any] | None = None
    """What a response repeats of its request."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of a response: what the names of some functions are made of."""
    dimensions: int | None = None
    is_base64: bool = False
    normalize: bool = True

    @property
    def is_chat(self) -> bool:
        return self.kind is Kind.CHAT

    @property
    def tells_echo(self) -> bool:
        """Whether the echo comes with the prompt's logprobs."""
        return self.has_echo and self.num_logprobs is not None

    @property
    def tells_prompts(self) -> bool:
        """Whether the reply has logprobs of the prompts."""
        return self.num_prompt_logprobs is not None or self.tells_echo

    @property
    def num_choices(self) -> int:
        return sum(request.limits.n for request in self.requests)


def order_chat(body: ChatRequest, caller: Caller) -> Order:
    """Return the order of a chat request that was checked; raise InvalidRequest."""
    plan = plan_tools(body, caller.info)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    request = text_request(body, caller, num_logprobs)
    part_thoughts(request.text, body, caller.info)
    if (grammar := grammar_of(body, plan)) is not None:
        request.text.grammar.CopyFrom(grammar)
    effort = effort_kwargs(body, caller.info)
    request.chat.CopyFrom(chat_input(body, is_offered=plan is not None, kwargs=effort))
    return order(body, Kind.CHAT, [request], num_logprobs, plan)


def part_thoughts(text: TextOptions, body: ChatRequest, info: ModelInfo) -> None:
    """Say that thoughts go out on their own, and how long they may be."""
    text.split_reasoning = bool(info.reasoning_format)
    if body.thinking_token_budget not in (None, -1):
        text.thinking_token_budget = body.thinking_token_budget


def effort_kwargs(body: ChatRequest, info: ModelInfo) -> dict[str, str | bool]:
    """Return what thinking and reasoning_effort mean to a template: on or off, and how much."""
    effort, switch = body.reasoning_effort, body.thinking
    if not info.reasoning_format or (effort is None and switch is None):
        return {}  # clients ask every model to think: it is no error where one does not
    is_on = effort != "none" if switch is None else switch.type == "enabled"
    return {"enable_thinking": is_on, **({"reasoning_effort": effort} if is_on and effort else {})}


def chat_input(
    body: ChatRequest | ChatPrompt | TokenizeRequest,
    is_offered: bool,
    kwargs: dict[str, str | bool] | None = None,
) -> ChatInput:
    """Return what the template is given; tools that may not be called are not shown to it."""
    given = {**(kwargs or {}), **(body.chat_template_kwargs or {})}
    tools = body.tools if is_offered else None
    return ChatInput(
        messages_json=dumps(body.messages),
        tools_json=dumps(tools) if tools else b"",
        template_kwargs_json=dumps(given) if given else b"",
        no_generation_prompt=body.add_generation_prompt is False,
        continue_final_message=bool(body.continue_final_message),
    )


def order_completion(body: CompletionRequest, caller: Caller) -> Order:
    """Return the order of a completion request that was checked, one `TextRequest` a prompt."""
    alike = text_request(body, caller, body.logprobs)
    if (grammar := grammar_of(body, None)) is not None:
        alike.text.grammar.CopyFrom(grammar)
    if body.echo and body.logprobs is not None:
        alike.limits.prompt_logprobs = max(body.logprobs, body.prompt_logprobs or 0)
    if body.draws_nothing:
        alike.limits.kind = SCORE
    alike.text.no_special_tokens = body.add_special_tokens is False
    check_repeated(alike.ByteSize() * len(body.prompt))
    requests = []
    for prompt in body.prompt:
        requests.append(request := TextRequest())
        request.CopyFrom(alike)
        request.sampling.seed = seed_of(body)
        fill_prompt(request, prompt)
    return order(body, Kind.TEXT, requests, body.logprobs, None)


def check_repeated(num_bytes: int) -> None:
    """Raise InvalidRequest when the fields beside the prompts, once for each, are too much."""
    if num_bytes > MAX_REPEATED_BYTES:
        raise refuse(
            f"prompt: what its entries are sent with (a grammar, lists of ids or words) has "
            f"{num_bytes} bytes, once for each; {MAX_REPEATED_BYTES} are allowed",
            "prompt",
        )


def order_embedding(body: EmbeddingRequest, caller: Caller) -> Order:
    """Return the order of an embedding request that was checked, one `TextRequest` an input."""
    requests = []
    for given in body.input:
        limits = routing_limits(body, caller)
        limits.kind = EMBED
        if body.pooling:
            limits.pooling = MEAN if body.pooling == "mean" else LAST
        sampled = SamplingParams(seed=1)  # nothing is drawn
        request = TextRequest(
            request_id=caller.request_id, model=caller.info.id, limits=limits, sampling=sampled
        )
        fill_prompt(request, given)
        requests.append(request)
    return Order(
        requests=requests,
        model=caller.info.id,
        kind=Kind.EMBEDDING,
        timeout_s=timeout_s(body),
        dimensions=body.dimensions,
        is_base64=body.encoding_format == "base64",
        normalize=body.normalize is not False,
    )


def fill_prompt(request: TextRequest, prompt: Any) -> None:
    """Put in a text, or a list of ids."""
    if isinstance(prompt, str):
        request.prompt = prompt
    else:
        request.prompt_token_ids = pack(prompt)


def order(
    body: Fields,
    kind: Kind,
    requests: list[TextRequest],
    num_logprobs: int | None,
    tools: ToolPlan | None,
) -> Order:
    options = body.stream_options
    includes_usage = bool(options and options.include_usage)
    return Order(
        requests=requests,
        model=requests[0].model,
        kind=kind,
        timeout_s=timeout_s(body),
        is_stream=bool(body.stream),
        include_usage=includes_usage,
        continuous_usage=includes_usage and bool(options and options.continuous_usage_stats),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=body.prompt_logprobs,
        return_token_ids=bool(body.return_token_ids),
        show_reasoning=getattr(body, "include_reasoning", None) is not False,
        show_progress=bool(body.return_progress),
        show_trace=bool(body.return_sampler_trace),
        tools=tools,
        grammar_field=grammar_field(body.structured_outputs),
        length_field=length_field(body),
        has_echo=bool(getattr(body, "echo", None)),
    )


def length_field(body: Fields) -> str:
    newer = getattr(body, "max_completion_tokens", None) is not None
    return "max_completion_tokens" if newer else "max_tokens"


def timeout_s(body: Routing) -> float | None:
    return body.timeout_ms / 1000 if body.timeout_ms is not None else None


def routing_limits(body: Routing, caller: Caller) -> Limits:
    return Limits(
        n=1,
        priority=body.priority or 0,
        tenant=caller.tenant,
        cache_salt=salt(caller.cache_secret, caller.tenant, body.cache_salt or ""),
    )


def text_request(body: Fields, caller: Caller, num_logprobs: int | None) -> TextRequest:
    """Return what chat and plain completions share."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    limits = routing_limits(body, caller)
    limits.MergeFrom(
        Limits(
            max_tokens=body.max_tokens,
            min_tokens=body.min_tokens or 0,
            n=body.n or 1,
            logprobs=num_logprobs,
            prompt_logprobs=body.prompt_logprobs,
            n_keep=body.n_keep,
            rotate_kv=bool(body.rotate_kv),
            report_progress=bool(body.return_progress),
        )
    )
    return TextRequest(
        request_id=caller.request_id,
        model=caller.info.id,
        limits=limits,
        sampling=sampling(body),
        text=TextOptions(
            stop=stops,
            include_stop=bool(body.include_stop_str_in_output),
            ignore_eos=bool(body.ignore_eos),
            keep_special_tokens=body.skip_special_tokens is False,
            stop_token_ids=body.stop_token_ids or [],
            bad_words=body.bad_words or [],
            dry_breakers=dry_breakers(body),
            return_prompt_ids=bool(body.return_token_ids),
        ),
    )


def salt(secret: bytes, tenant: str, given: str) -> bytes:
    """Return the salt of the prefix cache: a client can narrow its tenant's, never leave it."""
    key = secret or b"millrace prefix cache"  # without a secret all gateways must still agree
    return hmac.digest(key, f"{tenant}\0{given}".encode(), "sha256")[:16]
