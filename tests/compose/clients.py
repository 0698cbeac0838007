"""Clients of the API: one request, a corpus, and some that never stop streaming."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millrace.http import Server

MODEL = "millrace-demo"
QUESTIONS = ("What is Millrace?", "Hello!", "What is 12 + 30?", "Name a capital.", "Count to ten.")
CORPUS: list[dict[str, Any]] = [
    {
        "messages": [{"role": "user", "content": f"{QUESTIONS[i % 5]}{' Please.' * (i // 10)}"}],
        "temperature": (0, 0.7, 1, 1.5, 1)[i // 10],
        "top_p": (1, 0.9)[i % 2],
        "seed": i,
        "max_tokens": 8 + i,
        "ignore_eos": i % 3 == 0,
    }
    for i in range(50)
]


def events(server: Server, **fields: Any) -> Any:
    """Yield the events of one streamed chat."""
    body = {"model": MODEL, "stream": True, "max_tokens": 64, **fields}
    return server.events("/v1/chat/completions", body)


def answer(server: Server, **fields: Any) -> tuple[str, str]:
    """Stream one chat to its end; return text and finish reason."""
    text, reason = "", ""
    for event in events(server, **fields):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    assert reason, "a stream ended without a finish"
    return text, reason


def corpus(server: Server) -> list[tuple[str, str]]:
    """Return the answers to the corpus, asked eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda fields: answer(server, **fields), CORPUS))


class Crowd:
    """Clients that stream one request after another until told to stop; all must get it right."""

    def __init__(self, server: Server, size: int = 4, max_tokens: int = 200) -> None:
        self.num_answers = 0
        self.failures: list[str] = []
        self._server = server
        self._max_tokens = max_tokens
        self._stop = threading.Event()
        self._expected = [self._ask(seed) for seed in range(size)]
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(size)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> tuple[str, str]:
        sent = {"messages": [{"role": "user", "content": "Tell me a story"}], "ignore_eos": True}
        return answer(self._server, seed=seed, temperature=1, max_tokens=self._max_tokens, **sent)

    def _run(self, seed: int) -> None:
        while not self._stop.is_set():
            try:
                if self._ask(seed) != self._expected[seed]:
                    self.failures.append("another answer")
            except Exception as error:  # whatever it is, the test wants to tell it
                self.failures.append(repr(error))
            self.num_answers += 1
