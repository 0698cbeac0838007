"""The echo of a stream that shows logprobs: a choice begins when all of its prompt is told.

The logprobs of a prompt come with one of its choices; the others may have begun to answer by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from api_gateway.bulks import Bulks, prompt_rows
from api_gateway.job import Job
from api_gateway.logprobs import TextOffsets, echo_logprobs
from api_gateway.sessions import Choice
from protos.common_pb2 import LENGTH, STOPPED
from protos.tokenizer_pb2 import TextLogprobs


class EchoedPrompts:
    """Holds the choices of one stream back until their echo may go out."""

    def __init__(self, echoes: Sequence[str], job: Job, bulks: Sequence[Bulks]) -> None:
        self._echoes = echoes
        self._job = job
        self._bulks = bulks
        self._begun: set[int] = set()
        self._new: list[Choice] = []
        self._told: dict[int, dict[str, Any]] = {}  # by prompt: its choices repeat the same

    def begun(self, news: Sequence[Choice]) -> list[Choice]:
        """Return the choices with something to show: those of `news`, and those held back so far,
        of which the prompt is told."""
        found = []
        for choice in news:
            self._bulks[choice.index].note(choice)
            if choice.index in self._begun:
                found.append(choice)
        for prompt, group in enumerate(self._job.groups):
            if group[-1].index in self._begun or not self._is_told(prompt):
                continue
            self._begun.update(choice.index for choice in group)
            self._new += group
            found += group
        return found

    def take_new(self) -> list[Choice]:
        """Return the choices whose echo is due since the last call."""
        taken, self._new = self._new, []
        return taken

    def text(self, choice: Choice) -> str:
        return self._echoes[choice.prompt]

    async def logprobs(self, choice: Choice, offsets: TextOffsets) -> dict[str, Any]:
        """Return the logprobs of the echo, for nobody to change; `offsets` then stands at its
        end."""
        echo, prompt = self.text(choice), choice.prompt
        offsets.begin_at(len(echo))
        if prompt not in self._told:
            rows, most = self._rows(prompt), self._job.requests[prompt].limits.logprobs
            self._told[prompt] = await asyncio.to_thread(echo_logprobs, echo, rows, most)
        return self._told[prompt]

    def _rows(self, prompt: int) -> list[TextLogprobs]:
        return prompt_rows(self._job, prompt, self._bulks)

    def _is_told(self, prompt: int) -> bool:
        """Of a first token there is nothing to tell; a choice that ended well has told all."""
        first, rows = self._job.groups[prompt][0], self._rows(prompt)
        if first.finish is not None:
            return first.finish.reason in (STOPPED, LENGTH)
        num_told = rows[-1].index + 1 if rows else 1
        return 0 < first.num_prompt_tokens <= num_told
