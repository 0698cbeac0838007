"""The objects of a response: the whole, its output items, their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from common.errors import ServiceError
from protos.json_fields import dumps

Shown = dict[str, Any]


class Head:
    """What is the same in every object of one response."""

    def __init__(self, request_id: str, created: int, model: str, asked: Mapping[str, Any]) -> None:
        """`asked` may hold whole numbers of any size, which orjson does not write."""
        self.request_id = request_id
        self._fields: Shown = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": created,
            "background": False,
            "model": model,
            **{name: orjson.Fragment(dumps(value)) for name, value in asked.items()},
        }

    def response(self, status: str, output: Sequence[Shown], **more: Any) -> Shown:
        """Return the whole; `more` are what only the end knows."""
        told = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._fields, "status": status, "output": list(output), **told, **more}

    def item_id(self, kind: str, index: int) -> str:
        return f"{kind}_{self.request_id}_{index}"


def reasoning_item(item_id: str, text: str | None, status: str) -> Shown:
    """Return thoughts; None for the text leaves them to come."""
    parts = [] if text is None else [{"type": "reasoning_text", "text": text}]
    shown = {"id": item_id, "type": "reasoning", "summary": [], "content": parts}
    return {**shown, "status": status}


def message_item(item_id: str, part: Shown | None, status: str) -> Shown:
    """Return an answer; None for the part leaves it to come."""
    parts = [] if part is None else [part]
    shown = {"id": item_id, "type": "message", "role": "assistant", "content": parts}
    return {**shown, "status": status}


def text_part(text: str, logprobs: Sequence[Shown]) -> Shown:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def call_item(item_id: str, call_id: str, names: Shown, arguments: str, status: str) -> Shown:
    """Return a call; `names` are its function's name and, if it is in one, namespace."""
    shown = {"id": item_id, "type": "function_call", "call_id": call_id, **names}
    return {**shown, "arguments": arguments, "status": status}


def usage_object(usage: Mapping[str, Any]) -> Shown:
    """Return what was used in the words of this route."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": dict(usage["completion_tokens_details"]),
        "total_tokens": usage["total_tokens"],
    }


def failure(error: ServiceError) -> Shown:
    """Return what went wrong: OpenAI's word for it, and ours, which says more."""
    word = "rate_limit_exceeded" if error.http_status == 429 else "server_error"
    return {"code": word, "reason": error.code, "message": error.message}
