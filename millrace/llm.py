"""LLM: the offline face for scripts. An AsyncLLM on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from pathlib import Path
from types import AsyncGeneratorType, TracebackType
from typing import Any, TypeVar, Unpack

from millrace.async_llm import CLOSED, AsyncLLM
from millrace.options import ModelOptions
from millrace.outputs import EmbeddingOutput, RequestOutput
from millrace.params import SamplingParams
from millrace.prompts import Messages, Prompt
from worker.hooks import Callback, Hook

T = TypeVar("T")
CLOSE_TIMEOUT_S = 60.0
OWN_THREADS = ("millrace-llm", "millrace-engine")


class LoopThread:
    """An event loop in a daemon thread, which closes it as well: a caller may have its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=OWN_THREADS[0], daemon=True)
        self._hooks = threading.local()
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self.is_here and not self._loop.is_closed()

    @property
    def is_here(self) -> bool:
        """False in a process forked off: threads stay behind."""
        return self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait; an exception here (Ctrl-C) cancels it."""
        why = ""
        if not self.is_open:
            why = CLOSED if self.is_here else "this LLM is of another process; open one after fork"
        elif getattr(self._hooks, "are_running", False):
            why = "a hook cannot ask its own LLM: the answer would wait for the hook"
        if why:
            work.close()
            raise RuntimeError(why)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def as_hook(self, callback: Callback) -> Callback:
        """Return a callback in which `run` is refused."""

        def call(name: str, tensor: Any, layer: int) -> None:
            self._hooks.are_running = True
            try:
                callback(name, tensor, layer)
            finally:
                self._hooks.are_running = False

        return call if callable(callback) else callback

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)

    def end(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, then stop; an exception here (Ctrl-C) ends the wait for it, and not it."""
        work = asyncio.wait_for(last, CLOSE_TIMEOUT_S)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        future.result()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_end_others())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class LLM:
    """One model. Use it as a context manager, or call `close`; safe to use from many threads.

    `model` is a folder (None: the demo model); `url` names running tokenizer services instead.
    `seed` makes a whole run repeatable: requests without a seed of their own take the next one.
    Further keywords say how the folder is loaded: `millrace/options.py`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        url: str | None = None,
        seed: int | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        thread = LoopThread()
        opening = AsyncLLM.open(model, url=url, seed=seed, **options)
        try:
            self._llm = thread.run(opening)
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        self._close = weakref.finalize(self, _close, thread, self._llm)

    @property
    def model(self) -> str:
        """The served name."""
        return self._llm.model

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete all prompts together; return their outputs in the order of the prompts."""
        return self._thread.run(self._llm.generate(prompts, params))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; options are those of `prompts.CHAT_OPTIONS`."""
        return self._thread.run(self._llm.chat(messages, params, **options))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> list[EmbeddingOutput]:
        """Return a vector per prompt, as `AsyncLLM.embed` says."""
        return self._thread.run(self._llm.embed(prompts, pooling, normalize, dimensions))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Yield what is new at each step; leaving the loop early ends the request."""
        deltas = self._llm.stream(prompt, params)
        try:
            while (delta := self._thread.run(_next(deltas))) is not None:
                yield delta
        finally:
            if self._thread.is_open:  # closing has ended it otherwise
                self._thread.run(_end(deltas))

    def register_hook(self, name: str, callback: Callback) -> Hook:
        """Show every intermediate whose name matches `name`, e.g. `attn_*`, to `callback`.

        It gets (name, float32 array with a row per token, layer; -1 outside the layers), in the
        engine's thread, where this LLM cannot be asked anything. Costs nothing before it is
        registered nor after `remove()`.
        """
        return self._llm.register_hook(name, self._thread.as_hook(callback))

    def close(self) -> None:
        """End all requests and release the model; may be called again."""
        self._close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


async def _end_others() -> None:
    """End what a Ctrl-C has left on this loop: what is cancelled already closes by itself."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(deltas: AsyncGenerator[RequestOutput, None]) -> RequestOutput | None:
    return await anext(deltas, None)


async def _end(deltas: AsyncGenerator[RequestOutput, None]) -> None:
    assert isinstance(deltas, AsyncGeneratorType)
    while True:
        if not deltas.ag_running:
            return await deltas.aclose()
        await asyncio.sleep(0)  # a question that Ctrl-C took back may hear of that after us


def _close(thread: LoopThread, llm: AsyncLLM) -> None:
    if not thread.is_here:
        return  # it is still the parent's
    if threading.current_thread().name in OWN_THREADS:  # the collector ran there: it cannot wait
        threading.Thread(target=_close, args=(thread, llm), name="closing", daemon=True).start()
        return
    thread.end(llm.close())
