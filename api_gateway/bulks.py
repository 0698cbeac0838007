"""What came of a choice beside the columns: its prompt's logprobs, its vector, sampler traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from api_gateway.job import Job
from api_gateway.sessions import Choice
from protos.tokenizer_pb2 import TextBulk, TextLogprobs


def prompt_rows(job: Job, prompt: int, bulks: Sequence[Bulks]) -> list[TextLogprobs]:
    """Return the logprobs of a prompt, which come with one of its choices."""
    held = [bulks[choice.index].prompt_rows for choice in job.groups[prompt]]
    return next(filter(None, held), [])


class Bulks:
    """The bulks of one choice, put together; what a replay says again is dropped."""

    def __init__(self) -> None:
        self.prompt_rows: list[TextLogprobs] = []
        self.embedding = b""
        self._next_trace = 0
        self._traces: list[dict[str, Any]] = []

    def note(self, choice: Choice) -> Bulks:
        """Take what is new; return self."""
        for bulk in choice.take_bulks():
            self.add(bulk)
        return self

    def add(self, bulk: TextBulk) -> None:
        """Take one bulk."""
        kind = bulk.WhichOneof("body")
        if kind == "prompt_tokens":
            held = self.prompt_rows[-1].index if self.prompt_rows else -1
            rows = bulk.prompt_tokens.logprobs
            self.prompt_rows += [row for row in rows if row.index > held]
        elif kind == "embedding":
            self.embedding = bulk.embedding
        elif kind == "trace_json":
            trace = orjson.loads(bulk.trace_json)
            if trace["index"] >= self._next_trace:
                self._next_trace = trace["index"] + 1
                self._traces.append(trace)

    def take_traces(self, end: int) -> list[dict[str, Any]]:
        """Return the traces of tokens before place `end` that no call has returned yet.

        A step with guesses brings some of tokens behind a stop, which do not count.
        """
        taken = [trace for trace in self._traces if trace["index"] < end]
        self._traces = self._traces[len(taken) :]
        return taken
