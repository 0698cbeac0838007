"""AsyncLLM: prompts in, RequestOutputs out, on the caller's event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from common.errors import Internal, InvalidRequest, from_detail
from millrace.client import EngineClient, Piece
from millrace.in_process import open_in_process
from millrace.options import ModelOptions
from millrace.outputs import FINISH_REASONS, CompletionOutput, Logprob, RequestOutput
from millrace.params import SamplingParams
from millrace.prompts import Messages, Prompt, given_ids, prompt_text, text_request
from millrace.remote import open_remote
from protos import common_pb2
from protos.tokenizer_pb2 import TextLogprobs
from worker.hooks import Callback, Hook

MAX_IN_FLIGHT = 256
"""Requests given to the client at once; the others wait here, where they cost nothing."""


class AsyncLLM:
    """One model, in this process or behind tokenizer services: `await AsyncLLM.open(…)`."""

    def __init__(self, client: EngineClient, seed: int | None = None) -> None:
        self._client = client
        self._seeds = random.Random(seed) if seed is not None else random.SystemRandom()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._num_requests = 0
        self._mark = f"{random.SystemRandom().getrandbits(32):08x}"

    @classmethod
    async def open(
        cls,
        model: str | Path | None = None,
        *,
        url: str | None = None,
        seed: int | None = None,
        **options: Unpack[ModelOptions],
    ) -> AsyncLLM:
        """Load `model` (a folder; None is the demo model) into this process, or connect to `url`:
        a comma list of host:port of tokenizer services."""
        if url is not None:
            return cls(await open_remote(url, None if model is None else str(model)), seed)
        return cls(await open_in_process(model, options), seed)

    @property
    def model(self) -> str:
        """The served name."""
        return self._client.model

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete all prompts together; return their outputs in the order of the prompts.

        Raises the first ServiceError of any of them and ends the others.
        """
        listed = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        each = _params_for(listed, params)
        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                for prompt, one in zip(listed, each, strict=True):
                    tasks.append(group.create_task(self._collect(self.stream(prompt, one))))
        except* Exception as group_error:
            raise _first(group_error) from None
        return [task.result() for task in tasks]

    async def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; options such as `tools`, `chat_template_kwargs`."""
        return await self.generate(conversations(messages, options), params)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new at each step: the texts and ids of all outputs joined are the answer.

        Closing the generator early ends the request.
        """
        async with self._room:
            request_id = request_id or self._next_id()
            seed = self._seeds.getrandbits(64)
            wanted = params or SamplingParams()
            request = text_request(prompt, wanted, self.model, request_id, seed)
            running = wanted.n
            pieces = self._client.submit(request)
            try:
                async for piece in pieces:
                    running -= piece.finish is not None
                    yield self._delta(prompt, request_id, piece, wanted, running == 0)
            finally:
                await pieces.aclose()

    def register_hook(self, name: str, callback: Callback) -> Hook:
        """Show every intermediate whose name matches `name` to callback(name, tensor, layer).

        Names are those of `worker/hooks.py`, patterns are the shell's; `remove()` ends it. Only for
        a model in this process. The callback runs in the engine's thread.
        """
        return self._client.register_hook(name, callback)

    async def cancel(self, request_id: str) -> int:
        """End the live requests of this id; return how many there were."""
        return await self._client.cancel(request_id)

    async def close(self) -> None:
        """End all requests and release the model."""
        await self._client.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _next_id(self) -> str:
        self._num_requests += 1
        return f"offline-{self._mark}-{self._num_requests}"

    def _delta(
        self, prompt: Prompt, request_id: str, piece: Piece, params: SamplingParams, last: bool
    ) -> RequestOutput:
        finish = piece.finish
        if finish is not None and finish.reason in (common_pb2.ERROR, common_pb2.IGNORED):
            raise from_detail(finish.error)
        output = CompletionOutput(
            index=piece.choice,
            text=piece.text,
            token_ids=list(piece.token_ids),
            logprobs=_logprobs(piece.logprobs) if params.logprobs is not None else None,
        )
        whole = RequestOutput(
            request_id=request_id,
            prompt=prompt_text(prompt),
            prompt_token_ids=given_ids(prompt) or self._client.prompt_token_ids(request_id),
            outputs=[output],
            finished=last,
        )
        if finish is not None:
            output.finish_reason = FINISH_REASONS[finish.reason]
            output.stop_reason = _stop_reason(finish)
            whole.num_prompt_tokens = finish.num_prompt_tokens
            whole.num_cached_tokens = finish.num_cached_tokens
        return whole

    @staticmethod
    async def _collect(deltas: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
        """Join the deltas of one request."""
        whole: RequestOutput | None = None
        outputs: dict[int, CompletionOutput] = {}
        async for delta in deltas:
            whole = delta
            for new in delta.outputs:
                _join(outputs, new)
        if whole is None:
            raise Internal("a request ended without an end")
        whole.outputs = [outputs[index] for index in sorted(outputs)]
        return whole


def conversations(
    messages: Messages | Sequence[Messages], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return one chat prompt per conversation."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    several = not isinstance(messages[0], Mapping)
    listed = messages if several else [messages]
    return [{"messages": list(one), **options} for one in listed]


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if len(params) != len(prompts):
        message = f"{len(params)} params for {len(prompts)} prompts; give one, or one for each"
        raise InvalidRequest(message, param="params")
    return list(params)


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first exception itself."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _join(outputs: dict[int, CompletionOutput], new: CompletionOutput) -> None:
    held = outputs.setdefault(new.index, new)
    if held is new:
        return
    held.text += new.text
    held.token_ids += new.token_ids
    if held.logprobs is not None and new.logprobs is not None:
        held.logprobs += new.logprobs
    held.finish_reason, held.stop_reason = new.finish_reason, new.stop_reason


def _logprobs(rows: Sequence[TextLogprobs]) -> list[dict[int, Logprob]]:
    """Return one dict per token; the chosen one stands first even if it is an alternative, too."""
    return [
        {e.token_id: Logprob(e.logprob, e.token, e.token_bytes) for e in row.entries}
        for row in rows
    ]


def _stop_reason(finish: common_pb2.Finish) -> int | str | None:
    kind = finish.WhichOneof("stop_reason")
    if kind is None:
        return None
    return finish.stop_string if kind == "stop_string" else finish.stop_token_id
