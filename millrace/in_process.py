"""InProcessClient: text tier, engine and worker in this process, without a socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry

from api_gateway.sessions import Choice, Demux, Mailbox
from common import threads
from common.errors import InvalidRequest
from common.model_folder import ModelFolderError
from engine_core.scheduling.prompt_lookup import MOST_GUESSES
from millrace.client import Piece
from millrace.engine_thread import EngineThread
from millrace.errors import CommandError
from millrace.options import ModelOptions
from millrace.pieces import Taker
from millrace.project import DEMO_MODEL, DEMO_NAME, check_length, model_folder
from protos.common_pb2 import ABORTED, Finish, ModelInfo
from protos.tokenizer_pb2 import TextBatch, TextRequest
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.model_folder import folder_name
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.text_model import TextModel, load_text_model
from worker.build import LoadedModel, load_model
from worker.hooks import Callback, Hook
from worker.memory import parse_size

MAX_PENDING = 1_000_000
FOLDER_ERRORS = (CommandError, ModelFolderError, ValueError, OSError, MemoryError)
"""What a folder, or an option, can be at fault for."""


class InProcessClient:
    """One model. Implements EngineClient; make it with `open_in_process`."""

    def __init__(
        self,
        text: TextModel,
        loaded: LoadedModel,
        metrics: TokenizerMetrics,
        kv_cache_bytes: int,
        max_model_len: int | None,
        num_guesses: int = 0,
    ) -> None:
        self._loaded = loaded
        self._text = text
        pipeline = self._pipeline = TextPipeline(text, metrics, max_pending=MAX_PENDING)
        self._engine = EngineThread(loaded, kv_cache_bytes, max_model_len, pipeline, num_guesses)
        self._engine.start()
        self._demux = Demux()
        self._session = pipeline.open_session(self._take, self._demux.deliver_bulk)
        self._is_closed = False

    @property
    def info(self) -> ModelInfo:
        """What is served, and how it writes tool calls and thoughts."""
        return self._pipeline.models()[0]

    async def submit(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        """Run one request until each of its choices has finished."""
        mailbox = Mailbox()
        choices = [Choice(mailbox, number=number) for number in range(max(1, request.limits.n))]
        taker = Taker(choices)
        request.slot = self._demux.add(choices)
        try:
            self._pipeline.submit(self._session, request)
            while taker.num_open:
                for piece in taker.take(await mailbox.wait()):
                    yield piece
        finally:
            for choice in choices:
                if self._demux.remove(choice):
                    self._pipeline.abort(self._session, choice.slot)

    def register_hook(self, pattern: str, callback: Callback) -> Hook:
        """Show intermediates of the model to `callback`, in the engine's thread."""
        if not isinstance(pattern, str):
            raise InvalidRequest(f"a hook's name must be a string, got {pattern!r}", param="name")
        if not callable(callback):
            message = f"a hook's callback must be callable, got {callback!r}"
            raise InvalidRequest(message, param="callback")
        try:
            return self._loaded.register_hook(pattern, callback)
        except ValueError as error:
            raise InvalidRequest(str(error), param="name") from error

    async def cancel(self, request_id: str) -> int:
        """End the live requests of exactly this id; return how many there were."""
        return self._pipeline.cancel(request_id, "")

    async def close(self) -> None:
        """End all requests, then the threads and the template's process."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pipeline.close_session(self._session)
        for choice in list(self._demux.choices.values()):
            choice.end(Finish(reason=ABORTED))
        try:
            await self._engine.stop()
        finally:  # a step may last longer than the caller's patience
            await self._text.close()

    def _take(self, batch: TextBatch) -> None:
        broken = self._demux.deliver(batch)
        assert not broken, "nothing is lost inside a process"


async def open_in_process(model: str | Path | None, options: ModelOptions) -> InProcessClient:
    """Load a model folder; raise InvalidRequest when it cannot be served.

    An option that is None is left out. Loads beside the loop; who is cancelled does not wait for
    the end of it.
    """
    options = cast(ModelOptions, {name: v for name, v in options.items() if v is not None})
    _check_kinds(model, options)
    metrics = TokenizerMetrics(CollectorRegistry())
    text: TextModel | None = None
    pool, loop = ThreadPoolExecutor(1, "load"), asyncio.get_running_loop()
    try:
        threads.check()
        folder = await _folder(DEMO_MODEL if model is None else model)
        name = DEMO_NAME if model is None else folder_name(folder)
        asked = _size("kv_cache_memory", options.get("kv_cache_memory"))
        longest = _max_model_len(options.get("max_model_len"), folder)
        if not 0 <= (num_guesses := options.get("num_guesses", 0)) <= MOST_GUESSES:
            raise ValueError(f"num_guesses is {num_guesses}, allowed: 0 to {MOST_GUESSES}")
        text = await loop.run_in_executor(pool, load_text_model, folder, name, metrics)
        loaded = await loop.run_in_executor(pool, _load, folder, options)
        budget = loaded.kv_cache_bytes(asked)
        return InProcessClient(text, loaded, metrics, budget, longest, num_guesses)
    except BaseException as error:
        if text is not None:
            await text.close()
        if isinstance(error, FOLDER_ERRORS):
            raise InvalidRequest(str(error), param="model") from error
        raise
    finally:
        pool.shutdown(wait=False)


async def _folder(model: str | Path) -> Path:
    """Return a model's folder; what cancels the wait ends a download."""
    given_up = threading.Event()
    try:
        return await asyncio.to_thread(model_folder, model, given_up)
    finally:
        given_up.set()


def _check_kinds(model: object, options: ModelOptions) -> None:
    if model is not None and not isinstance(model, str | Path):
        raise InvalidRequest(f"model must be a folder, got {model!r}", param="model")
    for name in ("threads", "max_model_len", "num_guesses"):
        if type(value := options.get(name, 0)) is not int:
            raise InvalidRequest(f"{name} must be a whole number, got {value!r}", param=name)
    for name in ("kv_cache_memory", "host_kv_memory"):
        if type(value := options.get(name, 0)) not in (int, str):
            why = f"{name} must be bytes as a whole number, or text as in 4GiB, got {value!r}"
            raise InvalidRequest(why, param=name)


def _load(folder: Path, options: ModelOptions) -> LoadedModel:
    return load_model(
        folder,
        options.get("device", "cpu"),
        options.get("dtype", "auto"),
        options.get("threads", 0),
        kv_layout=options.get("kv_layout", "block"),
        kernel_level=options.get("kernel_level", "auto"),
        quantization=options.get("quantization", "none"),
        kv_cache_dtype=options.get("kv_cache_dtype", "auto"),
        host_kv_bytes=_size("host_kv_memory", options.get("host_kv_memory")) or 0,
    )


def _size(field: str, given: str | int | None) -> int | None:
    if isinstance(given, int) and given < 0:
        raise ValueError(f"{field} is {given}, allowed: 0 bytes or more")
    return parse_size(field, given) if isinstance(given, str) else given


def _max_model_len(given: int | None, folder: Path) -> int | None:
    if given is not None and given < 0:
        raise ValueError(f"max_model_len is {given}, allowed: 0 (the model's) or more")
    check_length(given or 0, folder)
    return given
