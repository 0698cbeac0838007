"""Anthropic's objects: the message, its blocks and their events, its usage, its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from common.errors import ServiceError
from protos.common_pb2 import LENGTH, Finish
from protos.json_fields import MAX_DEPTH, depth

Shown = dict[str, Any]
TOO_LONG = re.compile(r"context length is (\d+) tokens.* but the prompt has (\d+)")
UNREAD = re.compile(r"(messages\[.*\]): type '(image|document)'")
INDEX = re.compile(r"\[(\d+)\]")
RESULT = re.compile(r"(\.content\.\d+)\.content")
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Words for statuses; other errors are the caller's below 500, and else the server's."""
UNTHREADED = {"error_code": "thread_unsupported_request"}
"""The tool runners of Anthropic's SDKs ask for a conversation that the server keeps, and by this
word go on without: each request then has the whole of it."""
_ANY_NUMBER = msgspec.json.Decoder(float_hook=str)


def event(kind: str, **fields: Any) -> bytes:
    told = orjson.dumps({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), told)


class OpenBlock:
    """A block of an answer; `field` of it grows, in deltas that have the text under `named`."""

    def __init__(self, index: int, shown: Shown, delta: str, field: str, named: str) -> None:
        self._index = index
        self._shown = shown
        self._delta = delta
        self._field = field
        self._named = named
        self._texts: list[str] = []

    def begin(self) -> bytes:
        return event("content_block_start", index=self._index, content_block=self._shown)

    def add(self, text: str, logprobs: Sequence[Shown] = ()) -> bytes:
        self._texts.append(text)
        delta = {"type": self._delta, self._named: text}
        return event("content_block_delta", index=self._index, delta=delta)

    def end(self, status: str) -> tuple[bytes, Shown]:
        text = "".join(self._texts)
        whole = arguments(text) if self._field == "input" else text
        told = event("content_block_stop", index=self._index)
        if "signature" in self._shown:  # it comes before the end of each thought; ours is empty
            delta = {"type": "signature_delta", "signature": ""}
            told = event("content_block_delta", index=self._index, delta=delta) + told
        return told, {**self._shown, self._field: whole}


class Blocks:
    """Opens the blocks of a message."""

    def thoughts(self, index: int) -> OpenBlock:
        shown = {"type": "thinking", "thinking": "", "signature": ""}
        return OpenBlock(index, shown, "thinking_delta", "thinking", "thinking")

    def speech(self, index: int) -> OpenBlock:
        return OpenBlock(index, {"type": "text", "text": ""}, "text_delta", "text", "text")

    def call(self, index: int, call_id: str, name: str) -> OpenBlock:
        shown = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        return OpenBlock(index, shown, "input_json_delta", "input", "partial_json")


def arguments(text: str) -> msgspec.Raw | Shown:
    """Return the arguments of a call as they were written: a number may be beyond all that is read.

    Those of one that was cut are no JSON, and those that are nested too deep could not come back
    in a history: none are shown.
    """
    try:
        value = _ANY_NUMBER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {} if depth(value, MAX_DEPTH) > MAX_DEPTH else msgspec.Raw(text.encode())


def message(request_id: str, model: str, content: Sequence[Shown], usage: Shown) -> Shown:
    """Return a message whose end is not known yet."""
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(content),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def ending(finish: Finish, has_calls: bool, max_tokens: int) -> Shown:
    """Return why a message ended. `max_tokens` are those that were asked for."""
    if finish.reason == LENGTH:
        is_full = finish.num_output_tokens < max_tokens
        reason = "model_context_window_exceeded" if is_full else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish.HasField("stop_string"):
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop_string}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def usage_object(usage: Mapping[str, Any]) -> Shown:
    """Return what was used; the parts of the input are told apart, and add up."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def in_their_words(error: ServiceError) -> str:
    """Return the message. Claude Code goes by how it begins: to shorten the conversation, or to
    take out what cannot be read."""
    if error.code == "unsupported_content" and (found := UNREAD.match(error.message)):
        path = INDEX.sub(r".\1", found[1])
        path = RESULT.sub(r"\1.tool_result.content", path)
        return f"{path}.{found[2]}: {error.message}"
    found = TOO_LONG.search(error.message) if error.code == "context_length_exceeded" else None
    if found is None:
        return error.message
    return f"prompt is too long: {found[2]} tokens > {found[1]} maximum: {error.message}"


def error_object(error: ServiceError, request_id: str) -> Shown:
    """Return the error as Anthropic's clients read it, with the field at fault and our code."""
    word = ERRORS.get(error.http_status)
    if word is None:
        word = "invalid_request_error" if error.http_status < 500 else "api_error"
    told: Shown = {
        "type": word,
        "message": in_their_words(error),
        "param": error.param,
        "code": error.code,
    }
    if (error.param, error.code) == ("thread", "unsupported_parameter"):
        told["details"] = UNTHREADED
    return {"type": "error", "error": told, "request_id": request_id}
