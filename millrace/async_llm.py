"""AsyncLLM: prompts in, RequestOutputs out, on the caller's event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from api_gateway.bulks import Bulks
from api_gateway.embedding_reply import shaped
from api_gateway.errors import of_finish
from common.errors import InvalidRequest
from millrace.client import EngineClient, Piece
from millrace.deltas import Deltas, collect
from millrace.in_process import open_in_process
from millrace.options import ModelOptions
from millrace.outputs import EmbeddingOutput, RequestOutput
from millrace.params import SamplingParams
from millrace.plain_values import check_request_id, plain_seed
from millrace.prompts import Messages, Prompt, asked, embed_request
from millrace.remote import open_remote
from protos import common_pb2
from protos.tokenizer_pb2 import TextRequest
from worker.hooks import Callback, Hook

T = TypeVar("T")
CLOSED = "this LLM is closed"
MAX_IN_FLIGHT = 256
"""Requests given to the client at once; the others wait here, where they cost nothing."""


class AsyncLLM:
    """One model, in this process or behind tokenizer services: `await AsyncLLM.open(…)`."""

    def __init__(self, client: EngineClient, seed: int | None = None) -> None:
        self._client = client
        self._seeds = random.Random(seed) if seed is not None else random.SystemRandom()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._num_requests = 0
        self._is_closed = False
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
        a comma list of host:port of tokenizer services.

        Raises InvalidRequest for what cannot be opened, an option that does not exist included.
        """
        if url is not None and not isinstance(url, str):
            raise InvalidRequest(f"url must be a string, got {url!r}", param="url")
        seed = plain_seed(seed)
        allowed = ModelOptions.__annotations__ if url is None else ()
        for name in options:
            if name not in allowed:
                known = ", ".join(allowed) or "none beside url, the servers have theirs"
                raise InvalidRequest(f"option {name!r} is unknown, allowed: {known}", param=name)
        if url is not None:
            return cls(await open_remote(url, None if model is None else str(model)), seed)
        return cls(await open_in_process(model, options), seed)

    @property
    def model(self) -> str:
        """The served name."""
        return self._client.info.id

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete all prompts together; return their outputs in the order of the prompts.

        Raises the first ServiceError of any of them and ends the others.
        """
        several = listed(prompts)
        each = _params_for(several, params)
        pairs = zip(several, each, strict=True)
        return await _together(collect(self.stream(prompt, one)) for prompt, one in pairs)

    async def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; options are those of `prompts.CHAT_OPTIONS`."""
        return await self.generate(conversations(messages, options), params)

    async def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> list[EmbeddingOutput]:
        """Return a vector per prompt: of its last token or the mean of all, brought to length 1.

        Without `pooling` the model folder says which (`1_Pooling/config.json`), else the last.
        `dimensions` keeps so many first numbers, for models that are trained for it.
        """
        if dimensions is not None and type(dimensions) is not int:
            message = f"dimensions must be a whole number, got {dimensions!r}"
            raise InvalidRequest(message, param="dimensions")
        info = self._client.info
        requests = (embed_request(one, info, self._next_id(), pooling) for one in listed(prompts))
        return await _together(self._embed(one, dimensions, normalize) for one in requests)

    async def _embed(
        self, request: TextRequest, dimensions: int | None, normalize: bool
    ) -> EmbeddingOutput:
        async with self._room, aclosing(self._submit(request)) as pieces:
            bulks, num_prompt_tokens = Bulks(), 0
            async for piece in pieces:
                for bulk in piece.bulks:
                    bulks.add(bulk)
                if (finish := piece.finish) is not None:
                    if finish.reason not in (common_pb2.STOPPED, common_pb2.LENGTH):
                        raise of_finish(finish)
                    num_prompt_tokens = finish.num_prompt_tokens
        vector = shaped(bulks.embedding, dimensions, normalize)
        return EmbeddingOutput(request.request_id, vector.tolist(), num_prompt_tokens)

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
            request_id = self._next_id() if request_id is None else request_id
            check_request_id(request_id)
            seed = self._seeds.getrandbits(64)
            (wanted,) = _params_for([prompt], params)
            order = asked(prompt, wanted, self._client.info, request_id, seed)
            deltas = Deltas(prompt, wanted, order)
            pieces = self._submit(order.request)
            try:
                async for piece in pieces:
                    yield deltas.read(piece)
            finally:
                await pieces.aclose()

    def register_hook(self, name: str, callback: Callback) -> Hook:
        """Show every intermediate whose name matches `name` to callback(name, tensor, layer).

        Names are those of `worker/hooks.py`, patterns are the shell's; `remove()` ends it. Only for
        a model in this process. The callback runs in the engine's thread.
        """
        if self._is_closed:
            raise RuntimeError(CLOSED)
        return self._client.register_hook(name, callback)

    async def cancel(self, request_id: str) -> int:
        """End the live requests of this id; return how many there were."""
        return await self._client.cancel(request_id)

    async def close(self) -> None:
        """End all requests and release the model."""
        self._is_closed = True
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

    def _submit(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        if self._is_closed:  # perhaps while this waited for room
            raise RuntimeError(CLOSED)
        return self._client.submit(request)

    def _next_id(self) -> str:
        self._num_requests += 1
        return f"offline-{self._mark}-{self._num_requests}"


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts as a list; one may stand alone."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidRequest(f"prompts must be one, or a list, got {prompts!r}", param="prompts")
    return list(prompts)


def conversations(
    messages: Messages | Sequence[Messages], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return one chat prompt per conversation."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    several = not isinstance(messages, Sequence) or not isinstance(messages[0], Mapping)
    listed = messages if several else [messages]
    if not isinstance(listed, Sequence) or not all(isinstance(one, Sequence) for one in listed):
        wanted = "a list of messages, or a list of such lists"
        raise InvalidRequest(f"messages must be {wanted}, got {messages!r:.80}", param="messages")
    return [{"messages": list(one), **options} for one in listed]


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if not isinstance(params, Sequence) or not all(map(_is_params, params)):
        message = f"params must be SamplingParams, or a list with one a prompt, got {params!r:.80}"
        raise InvalidRequest(message, param="params")
    if len(params) != len(prompts):
        message = f"{len(params)} params for {len(prompts)} prompts; give one, or one for each"
        raise InvalidRequest(message, param="params")
    return [one or SamplingParams() for one in params]


def _is_params(one: object) -> bool:
    return one is None or isinstance(one, SamplingParams)


async def _together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what all of these return, in their order; the first error of any ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as group_error:
        raise _first(group_error) from None
    return [task.result() for task in tasks]


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first exception itself."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
