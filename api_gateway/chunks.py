"""The frames of an event stream: what never changes of a chunk is bytes made once.

Chunks with more than text (logprobs, ids, calls, usage so far) are built as objects.
"""

from __future__ import annotations

from typing import Any

import orjson

from api_gateway.answers import Said
from api_gateway.logprobs import TextOffsets, completion_logprobs
from api_gateway.replies import reply_id
from api_gateway.translate import Order

_dumps = orjson.dumps


def frame(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _dumps(event)


class Chunks:
    """Makes the frames of one stream."""

    def __init__(self, order: Order, request_id: str, created: int, fingerprint: str) -> None:
        self._order = order
        self._head: dict[str, Any] = {
            "id": reply_id(request_id, order.is_chat),
            "object": "chat.completion.chunk" if order.is_chat else "text_completion",
            "created": created,
            "model": order.model,
            "system_fingerprint": fingerprint,
        }
        self._rest: dict[str, Any] = {"logprobs": None, "finish_reason": None}
        if order.num_logprobs is not None and not order.is_chat:
            self._rest["logprobs"] = completion_logprobs([], TextOffsets())
        if order.return_token_ids:
            self._rest["token_ids"] = []
        is_bare = order.num_logprobs is None and not order.return_token_ids
        is_bare = is_bare and not order.show_trace and not order.show_progress
        self.is_plain = is_bare and not order.continuous_usage and order.tools is None
        """Whether text is all that a chunk carries."""
        around = [self._around(self.choice(k, "\0")) for k in range(order.num_choices)]
        self._before = [parts[0] for parts in around]
        self._after = [parts[1] for parts in around]

    def _around(self, choice: dict[str, Any]) -> list[bytes]:
        """Return the bytes around the text of a plain chunk."""
        return frame(self.event(choice)).split(b'"\\u0000"')

    def text(self, index: int, text: str) -> bytes:
        """Return a chunk that is nothing but text: the hot path."""
        return self._before[index] + _dumps(text) + self._after[index]

    def thought(self, index: int, text: str) -> bytes:
        """Return a chunk of reasoning."""
        shown = self.choice(index, None)
        shown["delta"] = Said(text).delta()
        return frame(self.event(shown))

    def choice(self, index: int, text: str | None) -> dict[str, Any]:
        """Return a choice object; None for the text leaves a chat delta empty.

        Lists that were asked for are in each, empty where nothing is new, as OpenAI and vLLM have
        it: clients add them up without looking. Only a chat's logprobs are null then.
        """
        shown: dict[str, Any] = {"index": index}
        if self._order.is_chat:
            shown["delta"] = {} if text is None else {"content": text}
        else:
            shown["text"] = text or ""
        return {**shown, **self._rest}

    def event(self, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        event = {**self._head, "choices": choices}
        if self._order.include_usage:
            event["usage"] = None
        return {**event, **more}

    def role(self, index: int) -> dict[str, Any]:
        """Return the first choice object of a chat: who speaks."""
        shown = self.choice(index, "")
        shown["delta"] = {"role": "assistant", "content": ""}
        return shown
