"""One open stream to one tokenizer: what goes out is merged, what comes in is fanned out.

Knows gRPC and slots. Does not reconnect and does not replay: `clients.py` does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from api_gateway.job import Job
from api_gateway.sessions import Choice, Demux
from common.errors import PayloadTooLarge, ServiceError
from common.peers import Breach, Stream
from common.rpc import MAX_MERGED_BYTES, MAX_MESSAGE_BYTES
from protos.common_pb2 import ERROR, EngineState, ErrorDetail, Finish, ModelInfo, SessionOpened
from protos.limits import SLOT_LIMIT
from protos.tokenizer_pb2 import ConvertRequest, GatewayMessage, TextBatch, TextMessage, TextRequest

MOST_BYTES = MAX_MESSAGE_BYTES - MAX_MERGED_BYTES - 2**21
"""Of one request: it may stand behind others in its message, with slots that end behind it. A
message that cannot pass ends the stream, with all that runs on it, and would be sent again."""
FORGET_ENGINE_AFTER_S = 30.0
"""After the last word of one that went without a farewell."""


class Link:
    """Lives as long as its stream. `jobs` run here; `states` is the last word of each engine."""

    def __init__(
        self,
        stream: Stream,
        opened: SessionOpened,
        on_broken: Callable[[Job, list[Choice]], None],
    ) -> None:
        """`on_broken` is told the choices of a job that miss a part of their tokens."""
        self.address = stream.address
        self.channel = stream.channel
        self.session = opened.session
        self.models: list[ModelInfo] = list(opened.models)
        self.states: dict[str, tuple[EngineState, float]] = {}
        self.demux = Demux()
        self.jobs: dict[Job, None] = {}
        self.heard_s = time.monotonic()
        self._stream = stream
        self._on_broken = on_broken
        self._adds: deque[tuple[TextRequest, int]] = deque()  # and its bytes
        self._aborts: list[int] = []
        self._pauses: dict[int, bool] = {}  # slot -> pause it, or resume it
        self._outgoing = asyncio.Event()

    def serves(self, model: str) -> bool:
        return any(model == info.id or model in info.aliases for info in self.models)

    def is_ready(self, now_s: float, stale_s: float) -> bool:
        """Return whether some engine behind it said lately that it is ready."""
        return any(s.ready and now_s - heard_s <= stale_s for s, heard_s in self.states.values())

    def send(self, request: TextRequest, choices: list[Choice]) -> None:
        """Queue an add; its slots start at a new number. One that cannot pass ends here."""
        try:
            size = checked_size(request)
        except PayloadTooLarge as error:
            fail(choices, error)
            return
        request.slot = self.demux.add(choices)
        now = time.monotonic()
        for choice in choices:
            choice.num_at_send, choice.sent_s = choice.num_tokens, now
        self._adds.append((request, size))
        self._outgoing.set()

    def abort(self, choices: list[Choice]) -> None:
        """Free those that are live here and tell the tokenizer."""
        for choice in choices:
            if self.demux.remove(choice):
                self._aborts.append(choice.slot)
        if self._aborts:
            self._outgoing.set()

    def pause(self, choices: list[Choice], is_paused: bool) -> None:
        """Ask for the choices that are live here to give up their place, or to go on."""
        for choice in choices:
            if self.demux.choices.get(choice.slot) is choice:
                self._pauses[choice.slot] = is_paused
        if self._pauses:
            self._outgoing.set()

    async def converse(self) -> None:
        """Pump both ways until the stream ends; raises grpc.RpcError, Breach or ValueError."""
        writer = asyncio.create_task(self._write())
        writer.add_done_callback(lambda _: self._stream.cancel())
        try:
            while (message := await self._stream.read()) is not None:
                self._receive(message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            is_stopped = task is not None and task.cancelling() > 0  # not only by the writer's end
            if writer.done() and not writer.cancelled() and not is_stopped:
                raise Breach(f"cannot send: {writer.exception()}") from None
            raise
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._outgoing.wait()
            while self._adds or self._aborts or self._pauses:
                message = GatewayMessage(session=self.session)
                size = 0
                while self._adds and size < MAX_MERGED_BYTES:
                    request, num_bytes = self._adds.popleft()
                    message.adds.append(request)
                    size += num_bytes
                if not self._adds:  # what they speak of must have been said
                    self._speak_of_added(message)
                await self._stream.write(message)
            self._outgoing.clear()

    def _speak_of_added(self, message: GatewayMessage) -> None:
        message.aborts.extend(self._aborts)
        for slot, is_paused in self._pauses.items():
            (message.pauses if is_paused else message.resumes).append(slot)
        self._aborts, self._pauses = [], {}

    def _receive(self, message: TextMessage) -> None:
        self.heard_s = time.monotonic()
        kind = message.WhichOneof("body")
        if kind == "batch":
            self._deliver(message.batch)
        elif kind == "state":
            self._note_state(message.state)
        elif kind == "bulk":
            self.demux.deliver_bulk(message.bulk)
        else:
            raise Breach(f"unexpected message {kind!r}")

    def _deliver(self, batch: TextBatch) -> None:
        if broken := self.demux.deliver(batch):
            self._aborts += [choice.slot for choice in broken]
            for job in list(self.jobs):
                if choices := [choice for choice in broken if choice in job.choices]:
                    self._on_broken(job, choices)
        if self.demux.next_slot > SLOT_LIMIT:
            raise Breach("slots of this stream are used up")

    def _note_state(self, state: EngineState) -> None:
        now = time.monotonic()
        last = {k: v for k, v in self.states.items() if now - v[1] < FORGET_ENGINE_AFTER_S}
        self.states = {**last, state.engine: (state, now)}
        if state.max_model_len:
            for info in self.models:
                info.max_model_len = state.max_model_len


def checked_size(request: TextRequest | ConvertRequest) -> int:
    """Return how many bytes a request has on its way; raise PayloadTooLarge for too many."""
    if (size := request.ByteSize()) > MOST_BYTES:
        why = f"the request has {size} bytes as the tokenizer is to read it"
        raise PayloadTooLarge(f"{why}, {MOST_BYTES} are allowed", code="request_too_large")
    return size


def fail(choices: Iterable[Choice], error: ServiceError) -> None:
    """End `choices` with `error`."""
    for choice in choices:
        choice.end(Finish(reason=ERROR, error=ErrorDetail(**error.fields())))
