"""What a reply says of its prompts: bounded, and made once for all choices that repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api_gateway.bulks import Bulks, prompt_rows
from api_gateway.checks import refuse
from api_gateway.job import Job
from api_gateway.logprobs import echo_logprobs, prompt_logprobs
from api_gateway.translate import Order
from protos.columns import unpack
from protos.limits import MAX_ECHO_CHARS, MAX_PROMPT_LOGPROBS
from protos.tokenizer_pb2 import TextRequest


@dataclass(frozen=True, slots=True)
class Told:
    """What is asked for of one prompt; None stands for what is not. Nobody changes it."""

    ids: list[int] | None
    logprobs: list[dict[str, Any] | None] | None
    echo: dict[str, list[Any]] | None


def told(order: Order, job: Job, prompt: int, bulks: Sequence[Bulks]) -> Told:
    """Return what a reply says of a prompt. Of a long one this takes long: use a thread."""
    rows = prompt_rows(job, prompt, bulks)
    num, num_echo = order.num_prompt_logprobs, order.num_logprobs if order.tells_echo else None
    return Told(
        prompt_ids(job, prompt) if order.return_token_ids else None,
        None if num is None else prompt_logprobs(rows, num),
        None if num_echo is None else echo_logprobs(order.echoes[prompt], rows, num_echo),
    )


def prompt_ids(job: Job, prompt: int) -> list[int]:
    """Return the ids of a prompt, which come with one of its choices."""
    return unpack(next((c.prompt_ids for c in job.groups[prompt] if c.prompt_ids), b"")).tolist()


def check_echo(requests: Sequence[TextRequest], texts: Sequence[str]) -> None:
    """Raise InvalidRequest when a reply would repeat more of its prompts than it may.

    `texts` are those of the first prompts.
    """
    pairs = zip(requests, texts, strict=False)
    count = sum(request.limits.n * len(text) for request, text in pairs)
    if count > MAX_ECHO_CHARS:
        raise refuse(
            f"echo: {count} characters of prompts, of each as often as it has choices; "
            f"{MAX_ECHO_CHARS} are allowed in a reply",
            "echo",
        )


def check_told(order: Order, job: Job) -> None:
    """Raise InvalidRequest when a reply would have more logprobs of prompts than it may.

    How many tokens a prompt has, the first word of its first choice says.
    """
    asked = (order.num_prompt_logprobs, order.num_logprobs if order.tells_echo else None)
    a_token = sum(num + 1 for num in asked if num is not None)
    count = 0
    for choices in job.groups:
        repeated = 1 if order.is_chat else len(choices)  # a chat tells them once
        count += choices[0].num_prompt_tokens * a_token * repeated
    if count > MAX_PROMPT_LOGPROBS:
        field = "prompt_logprobs" if order.num_prompt_logprobs is not None else "logprobs"
        raise refuse(
            f"{field}: {count} log-probabilities of prompts (choices, times tokens of their "
            f"prompt, times alternatives and 1), {MAX_PROMPT_LOGPROBS} are allowed in a reply",
            field,
        )
