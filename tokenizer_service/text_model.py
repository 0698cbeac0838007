"""One model as the text tier sees it: tokenizer, template and completion rules, put together."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.errors import InvalidRequest, Unprocessable
from protos.columns import unpack
from protos.common_pb2 import ModelInfo
from protos.tokenizer_pb2 import TextRequest
from tokenizer_service.completion import Completion
from tokenizer_service.detokenizer import Detokenizer, NoText
from tokenizer_service.formats import TOOL_TAGS, reasoning_format, tool_format
from tokenizer_service.grammar import GrammarDoor
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.model_folder import ModelFolder, read_model_folder
from tokenizer_service.prompt import Prompt, PromptBuilder
from tokenizer_service.reasoning import Place, place_after
from tokenizer_service.resolution import Resolution
from tokenizer_service.stop_strings import StopStrings
from tokenizer_service.template_process import TemplateProcess
from tokenizer_service.text_stream import TextStream
from tokenizer_service.tokenizer import Tokenizer, load_tokenizer

ENCODE_THREADS = 2
log = logging.getLogger(__name__)
PROMPT_END_TOKENS = 16
"""Enough for a think tag that is spelled by several tokens, and newlines after it; or for a token
that has a text."""


class TextModel:
    """Everything of one model folder that is needed to serve text."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: Tokenizer | None,
        template: TemplateProcess | None,
        metrics: TokenizerMetrics,
    ) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self._template = template
        self._executor = ThreadPoolExecutor(ENCODE_THREADS, thread_name_prefix="encode")
        self.vocab_size = folder.vocab_size or (tokenizer.size if tokenizer is not None else 0)
        self.prompts = PromptBuilder(
            tokenizer,
            template,
            self._executor,
            self.vocab_size,
            metrics,
            folder.templates,
        )
        self._grammars = GrammarDoor()
        self.resolution = Resolution(tokenizer, self._executor, self._grammars, self.vocab_size)
        self.reasoning_format = reasoning_format(folder.templates) if tokenizer is not None else ""
        self.completion = Completion(
            model=folder.name,
            vocab_size=self.vocab_size,
            eos_token_ids=all_eos_ids(folder, tokenizer),
            sampling_defaults=folder.sampling_defaults,
            max_new_tokens=folder.max_new_tokens,
            has_tokenizer=tokenizer is not None,
            pooling=folder.pooling,
        )

    def info(self, max_model_len: int) -> ModelInfo:
        """Return what gateways are told of this model."""
        return ModelInfo(
            id=self.folder.name,
            aliases=self.folder.aliases,
            created_s=self.folder.created_s,
            max_model_len=max_model_len,
            tool_format=tool_format(self.folder.templates),
            reasoning_format=self.reasoning_format,
            tag_tokens=self._tag_tokens(),
            sampling=self.completion.defaults(),
        )

    def about(self) -> dict[str, str | None]:
        """Return what a client needs to write prompts of its own, by the names of the folder."""
        return {
            "tokenizer_class": self.folder.tokenizer_class,
            **self.folder.token_texts,
            "chat_template": self.folder.templates.get("default"),
        }

    def _tag_tokens(self) -> list[str]:
        """Return the tags that are tokens: a grammar must call these by name, not spell them."""
        if self.tokenizer is None:
            return []
        return [tag for tag in TOOL_TAGS if self.tokenizer.id_of(tag) is not None]

    def thoughts_place(self, request: TextRequest, prompt: Prompt) -> Place | None:
        """Return where the request's text begins; None when its thoughts are not parted."""
        if not (request.text.split_reasoning and self.reasoning_format):
            return None
        end = unpack(prompt.token_ids[-4 * PROMPT_END_TOKENS :])
        return place_after(self.text_of(end, keep_special=True), prompt.continued)

    def text_of(self, token_ids: Iterable[int], keep_special: bool) -> str:
        """Return the text of `token_ids`; raise InvalidRequest without a tokenizer."""
        if self.tokenizer is None:
            raise InvalidRequest("the model folder has no tokenizer", code="no_tokenizer")
        return self.tokenizer.decode(token_ids, keep_special)

    def stream(
        self, request: TextRequest, stops: StopStrings, prompt: bytes, resume_bytes: int
    ) -> TextStream:
        """Return the decoder of one choice's text behind `prompt`, a column.

        `stops` is shared by the choices of a request.
        """
        return TextStream(
            self._detokenizer(request.text.keep_special_tokens, prompt),
            stops,
            self.completion.stop_token_ids(request),
            request.limits.min_tokens,
            resume_bytes,
        )

    def _detokenizer(self, keep_special: bool, prompt: bytes) -> Detokenizer:
        if self.tokenizer is None:
            return NoText()
        return self.tokenizer.detokenizer(keep_special, unpack(prompt[-4 * PROMPT_END_TOKENS :]))

    def token(self, token_id: int) -> tuple[str, bytes]:
        """Return text and bytes of one token, as log probabilities show them."""
        piece = self.tokenizer.piece(token_id) if self.tokenizer is not None else b""
        return piece.decode("utf-8", "replace"), piece

    def is_special(self, token_id: int) -> bool:
        """Whether answers leave the token out unless they are asked to keep it."""
        return self.tokenizer is not None and token_id in self.tokenizer.special_ids

    async def close(self) -> None:
        """End the template process and the threads."""
        if self._template is not None:
            await self._template.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.prompts.close()
        await self._grammars.close()

    async def warm_up(self) -> None:
        """Start the sandbox and compile the template, so that the first request does not wait."""
        if self._template is None:
            return
        try:
            await self._template.render([{"role": "user", "content": "Hi"}])
        except InvalidRequest as error:  # it may be broken, or ask for more than one message
            log.warning("the chat template refuses a message", extra={"reason": error.message})
        except Unprocessable as error:  # chats will be told so one by one; other texts need none
            log.warning("the chat template overran", extra={"reason": error.message})


def load_text_model(
    path: Path,
    served_name: str,
    metrics: TokenizerMetrics,
    template_kwargs: Mapping[str, Any] | None = None,
) -> TextModel:
    """Read a model folder's text side; raise ModelFolderError when it cannot be served.

    `template_kwargs` are values for the chat template that requests may give others for.
    """
    folder = read_model_folder(path, served_name)
    template = None
    if folder.templates:
        variables = {**folder.token_texts, **(template_kwargs or {})}
        template = TemplateProcess(folder.templates, variables)
    return TextModel(folder, load_tokenizer(folder), template, metrics)


def all_eos_ids(folder: ModelFolder, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Return the folder's EOS ids and that of the tokenizer's eos_token, as vLLM unites them.

    A tokenizer may have more tokens than the model: what the model cannot draw ends nothing.
    """
    text = folder.token_texts.get("eos_token")
    named = tokenizer.id_of(text) if tokenizer is not None and text is not None else None
    if named is None or 0 < folder.vocab_size <= named:
        return folder.eos_token_ids
    return folder.eos_token_ids | {named}
