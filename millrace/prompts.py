"""What users may give as a prompt, and the TextRequest it becomes: the gateway's own message.

A chat is read by the gateway's own parser, so that its options mean what they mean over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from api_gateway.parsing import read
from api_gateway.schema import ChatRequest
from api_gateway.structure import grammar_of
from api_gateway.tools import ToolPlan, plan_tools
from api_gateway.translate import chat_input, effort_kwargs, part_thoughts
from api_gateway.validation import check_chat
from common.errors import InvalidRequest
from millrace.params import SamplingParams
from millrace.plain_values import as_json, check_unicode, plain
from protos.columns import pack
from protos.common_pb2 import EMBED, LAST, MEAN, Limits, ModelInfo
from protos.common_pb2 import SamplingParams as Sampling
from protos.limits import MAX_U32
from protos.tokenizer_pb2 import TextRequest

Prompt: TypeAlias = str | Mapping[str, Any]
"""A text, {"prompt": text}, {"prompt_token_ids": ids} or {"messages": [...], chat options}."""
Messages: TypeAlias = Sequence[Mapping[str, Any]]
CHAT_OPTIONS = frozenset(
    {
        "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort",
        "include_reasoning", "thinking_token_budget", "add_generation_prompt",
        "continue_final_message",
    }
)  # fmt: skip
POOLINGS = {"last": LAST, "mean": MEAN}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and how its answer is to be read."""

    request: TextRequest
    tools: ToolPlan | None = None
    show_reasoning: bool = True


def asked(
    prompt: Prompt, params: SamplingParams, info: ModelInfo, request_id: str, seed: int
) -> Asked:
    """Return the request; raise InvalidRequest when `prompt` is none of the known forms."""
    request = params.request(info, request_id, seed)
    request.text.return_prompt_ids = True
    if isinstance(prompt, Mapping) and "messages" in prompt:
        return _asked_chat(request, prompt, params, info)
    _fill(request, prompt)
    return Asked(request)


def embed_request(
    prompt: Prompt, info: ModelInfo, request_id: str, pooling: str | None
) -> TextRequest:
    """Return the request of a vector; without a pooling it is the model folder's."""
    if pooling is not None and pooling not in list(POOLINGS):  # it may be one that has no hash
        raise InvalidRequest(f"pooling must be last or mean, got {pooling!r:.40}", param="pooling")
    request = TextRequest(
        request_id=request_id,
        model=info.id,
        limits=Limits(kind=EMBED, pooling=pooling and POOLINGS[pooling], n=1),
        sampling=Sampling(seed=1),  # nothing is drawn
    )
    _fill(request, prompt)
    return request


def _fill(request: TextRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        check_unicode("prompt", prompt)
        request.prompt = prompt
    elif isinstance(prompt, Mapping) and "prompt_token_ids" in prompt:
        request.prompt_token_ids = _column(_only(prompt, "prompt_token_ids"))
    elif isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str):
        _fill(request, _only(prompt, "prompt"))
    else:
        forms = "a string, {'prompt': str}, {'prompt_token_ids': [int]} or {'messages': [...]}"
        raise InvalidRequest(f"a prompt must be {forms}, got {prompt!r:.80}", param="prompt")


def prompt_text(prompt: Prompt) -> str | None:
    """Return the text the user gave, None for ids and messages."""
    if isinstance(prompt, str):
        return prompt
    text = prompt.get("prompt")
    return text if isinstance(text, str) else None


def _only(prompt: Mapping[str, Any], key: str) -> Any:
    if unknown := sorted(map(str, set(prompt) - {key})):
        raise InvalidRequest(f"a prompt of {key} may not also have {unknown}", param="prompt")
    return prompt[key]


def _column(ids: Sequence[int]) -> bytes:
    ids = plain(ids)
    if not isinstance(ids, list):
        message = f"prompt_token_ids must be a list of token ids, got {ids!r:.80}"
        raise InvalidRequest(message, param="prompt")
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise InvalidRequest(f"prompt_token_ids has {token_id!r}, no id", param="prompt")
        if not 0 <= token_id <= MAX_U32:
            raise InvalidRequest(f"prompt_token_ids has {token_id}, no id", param="prompt")
    return pack(ids)


def _asked_chat(
    request: TextRequest, prompt: Mapping[str, Any], params: SamplingParams, info: ModelInfo
) -> Asked:
    """Read a chat as the gateway reads its body."""
    if unknown := sorted(map(str, set(prompt) - CHAT_OPTIONS - {"messages"})):
        known = sorted(CHAT_OPTIONS)
        raise InvalidRequest(f"unknown chat options {unknown}; known: {known}", param=unknown[0])
    body = read(as_json("messages", {**prompt, "model": info.id}), ChatRequest)
    body.response_format = params.body.response_format
    body.structured_outputs = params.body.structured_outputs
    body.n_keep = params.body.n_keep  # which a budget of thoughts excludes
    check_chat(body)
    plan = plan_tools(body, info)
    if (grammar := grammar_of(body, plan)) is not None:
        request.text.grammar.CopyFrom(grammar)
    part_thoughts(request.text, body, info)
    request.chat.CopyFrom(chat_input(body, plan is not None, effort_kwargs(body, info)))
    return Asked(request, plan, body.include_reasoning is not False)
