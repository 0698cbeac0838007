"""The seam under `AsyncLLM`: something that takes a TextRequest and gives back text.

Two implementations stand: `in_process.InProcessClient` (no sockets) and `remote.RemoteClient` (gRPC
to tokenizer services). Both give what the gateway would get.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from protos.common_pb2 import Finish, ModelInfo
from protos.tokenizer_pb2 import TextBulk, TextLogprobs, TextRequest
from worker.hooks import Callback, Hook


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step means for one choice. The one with `finish` is the last of its choice."""

    choice: int
    """Position among the request's choices, from 0."""
    text: str = ""
    reasoning: str = ""
    """What the model thought; stands before the text."""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TextLogprobs] = ()
    bulks: Sequence[TextBulk] = ()
    prompt_ids: bytes = b""
    """Column, of the request's prompt, when it was asked for."""
    finish: Finish | None = None


class EngineClient(Protocol):
    """Belongs to one event loop. `close` ends whatever still runs."""

    @property
    def info(self) -> ModelInfo:
        """What is served, by the name that requests must carry, and how it writes tool calls and
        thoughts."""

    def submit(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        """Run one request (its slot is set here) until each of its choices has finished.

        Closing the generator early ends the request. Errors come as a Finish, never raised.
        """

    def register_hook(self, pattern: str, callback: Callback) -> Hook:
        """Show intermediates of the model to `callback`; raise InvalidRequest when it is remote."""

    async def cancel(self, request_id: str) -> int:
        """End the live requests of exactly this id; return how many there were."""

    async def close(self) -> None:
        """End all requests and release everything."""
