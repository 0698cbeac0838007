"""A request's input → prompt token ids: template, guarded text, encoding in threads.

Knows no engine; in what form templates take messages, `rendering.py` knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from common.errors import InvalidRequest
from protos.columns import unpack
from protos.json_fields import dumps, loads
from protos.tokenizer_pb2 import ChatInput, TextRequest
from tokenizer_service.chat_template import RESERVED
from tokenizer_service.completion import check_ids, input_param
from tokenizer_service.guarded_text import GuardedText
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.rendering import Renderer, with_parsed_arguments
from tokenizer_service.template_process import TemplateProcess
from tokenizer_service.tokenizer import Tokenizer
from tokenizer_service.turns import Asker, asker_of

T = TypeVar("T")
LONG_TEXT, LONG_TEXTS = 65_536, 2
"""Characters that take a tenth of a second or so, and threads for such texts alone."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a request's input has become."""

    token_ids: bytes
    """Column."""
    text: str = ""
    """Of a chat: as the template made it."""
    continued: str = ""
    """Of a chat: the begin of the answer that is to go on."""


class PromptBuilder:
    """Builds prompts of one model. `tokenizer` or `template` may be missing from the folder."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        template: TemplateProcess | None,
        executor: Executor,
        vocab_size: int,
        metrics: TokenizerMetrics,
        templates: Mapping[str, str],
    ) -> None:
        """`templates` are the sources of `template`, by name."""
        self._tokenizer = tokenizer
        self._renderer = Renderer(template, templates) if template is not None else None
        self._executor = executor
        self._long_texts = ThreadPoolExecutor(LONG_TEXTS, thread_name_prefix="encode-long")
        self._vocab_size = vocab_size
        self._metrics = metrics

    def close(self) -> None:
        """End the threads of long texts; the executor is its owner's."""
        self._long_texts.shutdown(wait=False, cancel_futures=True)

    async def build(self, request: TextRequest) -> Prompt:
        """Return the prompt; raise InvalidRequest or Unprocessable naming the field."""
        kind, param = request.WhichOneof("input"), input_param(request)
        if kind == "prompt_token_ids":
            return Prompt(self.checked_ids(not_empty(request.prompt_token_ids, param), param))
        if kind == "chat":
            prompt = await self.chat(request.chat, asker_of(request))
            self._served(prompt.token_ids, param)
            return prompt
        if kind == "prompt":
            column = await self.text(request.prompt, param, not request.text.no_special_tokens)
            return Prompt(self._served(column, param))
        raise InvalidRequest("the request has no input", param=param)

    def _served(self, column: bytes, param: str) -> bytes:
        """Return what a text has become, if it is something that the model has tokens for."""
        if self._tokenizer is not None and self._tokenizer.size > self._vocab_size:
            self.checked_ids(column, param)
        return not_empty(column, param)

    def checked_ids(self, column: bytes, param: str) -> bytes:
        """Return `column`; raise InvalidRequest when an id is none of the vocabulary."""
        if len(column) % 4:
            raise InvalidRequest(f"{param} is not a list of token ids", param=param)
        check_ids(param, unpack(column), self._vocab_size)
        return column

    async def text(self, text: str, param: str, add_special_tokens: bool = True) -> bytes:
        """Return the column of a plain text, that of field `param`."""
        tokenizer = self._required_tokenizer(param)
        return await self._encode(text, lambda: tokenizer.encode(text, add_special_tokens))

    async def chat(self, chat: ChatInput, asker: Asker) -> Prompt:
        """Render and encode; equal to the plain way whenever no user text is a special token."""
        tokenizer = self._required_tokenizer("messages")
        if self._renderer is None:
            raise InvalidRequest(
                "the model folder has no chat template; use /v1/completions with a prompt",
                param="messages",
                code="no_chat_template",
            )
        messages = parsed(chat.messages_json, "messages", list)
        tools = parsed(chat.tools_json, "tools", list) or None
        kwargs = parsed(chat.template_kwargs_json, "chat_template_kwargs", dict) or {}
        check_chat(chat, messages, kwargs)

        def raw() -> str:
            read = [with_parsed_arguments(message, loads) for message in messages]
            return dumps([messages, tools, kwargs, read]).decode()

        guard = GuardedText(tokenizer.special_texts, raw)

        def hide() -> tuple[Any, Any, Any]:
            return guard.hide(messages), guard.hide(tools), guard.hide(kwargs)

        def encode() -> tuple[bytes, str]:
            if guard.used or tokenizer.matches_loosely:
                return tokenizer.encode_guarded(guard.split(text)), guard.show(text)
            return tokenizer.encode(text, add_special_tokens=False), text

        started = time.perf_counter()
        is_long = chat.ByteSize() >= LONG_TEXT
        hidden = await self._in_long(hide) if is_long else hide()
        text = await self._renderer.render(chat, *hidden, asker, guard.read)
        self._metrics.template_seconds.observe(time.perf_counter() - started)
        ids, shown = await self._encode(text, encode)
        continued = messages[-1]["content"] if chat.continue_final_message else ""
        return Prompt(ids, shown, continued)

    async def _in_long(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._long_texts, work)

    def _required_tokenizer(self, param: str) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequest(
                "the model folder has no tokenizer: only prompts of token ids can be served",
                param=param,
                code="no_tokenizer",
            )
        return self._tokenizer

    async def _encode(self, text: str, encode: Callable[[], T]) -> T:
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        executor = self._executor if len(text) < LONG_TEXT else self._long_texts
        result = await loop.run_in_executor(executor, encode)
        self._metrics.encode_seconds.observe(time.perf_counter() - started)
        return result


def not_empty(column: bytes, param: str) -> bytes:
    if not column:
        what = "input" if param == "input" else "prompt"
        raise InvalidRequest(f"the {what} is empty", param=param)
    return column


def parsed(text: bytes, param: str, kind: type[list[Any]] | type[dict[Any, Any]]) -> Any:
    """Return the JSON value of a field, None when it is absent."""
    if not text:
        return None
    try:
        value = loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from error
    if not isinstance(value, kind):
        raise InvalidRequest(f"{param} must be a JSON {kind.__name__}", param=param)
    return value


def check_chat(chat: ChatInput, messages: Any, kwargs: dict[str, Any]) -> None:
    """Raise InvalidRequest for what no template can mean."""
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequest("messages must be a non-empty list of objects", param="messages")
    if taken := sorted(RESERVED & kwargs.keys()):
        raise InvalidRequest(
            f"chat_template_kwargs may not set {taken[0]}: it is a field of its own",
            param="chat_template_kwargs",
        )
    if chat.continue_final_message and not isinstance(messages[-1].get("content"), str):
        raise InvalidRequest(
            "continue_final_message needs a final message with text", param="messages"
        )
