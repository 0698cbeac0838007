"""Measures llama.cpp through the C functions that llama-cpp-python exports."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from bench.peers.asking import Task, serve
from bench.peers.gguf_file import write_gguf

FILE_TYPES = {
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}


class OnLlamaCpp:
    """One model; every measurement has a context of its own."""

    def __init__(self, path: Path, task: Task) -> None:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._task = task
        self._random = random.Random(0)

    def facts(self) -> dict[str, str]:
        """Return what the library was compiled for."""
        told = llama_cpp.llama_print_system_info().decode()
        return {"built with": " ".join(told.replace("|", "").split()).replace(" = 1", "")}

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each step, the search for the likeliest id included."""
        task = self._task
        context = self._context(batch, task.context + task.steps)
        rows = [self._prompt(context, task.context, row) for row in range(batch)]
        tokens = llama_cpp.llama_batch_init(batch, 0, 1)
        times = []
        for step in range(task.steps):
            begin = time.perf_counter()
            tokens.n_tokens = batch
            for row in range(batch):
                _put(tokens, row, rows[row], task.context + step, row)
            self._run(context, tokens)
            rows = [self._likeliest(context, row) for row in range(batch)]
            times.append(time.perf_counter() - begin)
        llama_cpp.llama_batch_free(tokens)
        llama_cpp.llama_free(context)
        return times

    def prefill(self) -> float:
        """Return the seconds of one prefill."""
        context = self._context(1, self._task.prompt)
        begin = time.perf_counter()
        self._prompt(context, self._task.prompt, 0)
        elapsed = time.perf_counter() - begin
        llama_cpp.llama_free(context)
        return elapsed

    def _context(self, batch: int, num_tokens: int) -> Any:
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = batch * -(-num_tokens // 256) * 256
        options.n_batch = 2048
        options.n_ubatch = 512
        options.n_seq_max = batch
        options.n_threads = options.n_threads_batch = self._task.threads
        context = llama_cpp.llama_init_from_model(self._model, options)
        if not context:
            raise RuntimeError("llama.cpp makes no context")
        return context

    def _prompt(self, context: Any, num_tokens: int, row: int) -> int:
        """Compute a random prompt of sequence `row`; return the likeliest next id."""
        tokens = llama_cpp.llama_batch_init(num_tokens, 0, 1)
        tokens.n_tokens = num_tokens
        for place in range(num_tokens):
            _put(tokens, place, self._random.randrange(self._vocab_size), place, row)
            tokens.logits[place] = place == num_tokens - 1
        self._run(context, tokens)
        llama_cpp.llama_batch_free(tokens)
        return self._likeliest(context, num_tokens - 1)

    def _run(self, context: Any, tokens: Any) -> None:
        if code := llama_cpp.llama_decode(context, tokens):
            raise RuntimeError(f"llama_decode returned {code}")

    def _likeliest(self, context: Any, place: int) -> int:
        """Return the id with the largest logit; NumPy's search is faster than the samplers'."""
        logits = llama_cpp.llama_get_logits_ith(context, place)
        values = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(values, (self._vocab_size,)).argmax())


def _put(tokens: Any, place: int, token_id: int, position: int, row: int) -> None:
    tokens.token[place] = token_id
    tokens.pos[place] = position
    tokens.n_seq_id[place] = 1
    tokens.seq_id[place][0] = row
    tokens.logits[place] = True


def load(task: Task) -> OnLlamaCpp:
    """Load the GGUF file of the task's weights; write it first if it is not there."""
    plain = Path(task.converted) / "bf16.gguf"
    if not plain.exists():
        write_gguf(Path(task.folder), plain)
    path = Path(task.converted) / f"{task.weights.lower()}.gguf"
    if not path.exists():
        _quantise(plain, path, FILE_TYPES[task.weights])
    return OnLlamaCpp(path, task)


def _quantise(plain: Path, path: Path, file_type: int) -> None:
    """Let llama.cpp quantise every matrix the same way, the head included, as ours does."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = file_type
    options.pure = True
    partial = path.with_suffix(".partial")
    code = llama_cpp.llama_model_quantize(
        str(plain).encode(), str(partial).encode(), ctypes.byref(options)
    )
    if code:
        raise RuntimeError(f"llama_model_quantize returned {code}")
    partial.rename(path)


if __name__ == "__main__":
    serve(["llama-cpp-python", "gguf", "numpy"], load)
