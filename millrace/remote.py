"""RemoteClient: the same requests to tokenizer services over gRPC, as a gateway sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from api_gateway.clients import TextClients
from api_gateway.job import Job
from common.errors import InvalidRequest, NotFound, Unavailable
from millrace.client import Piece
from millrace.pieces import Taker
from protos.common_pb2 import ABORTED, Finish, ModelInfo
from protos.tokenizer_pb2 import TextRequest
from worker.hooks import Callback, Hook

CONNECT_TIMEOUT_S = 10.0
POLL_S = 0.02


class RemoteClient:
    """One model behind tokenizers. Implements EngineClient; make it with `open_remote`."""

    def __init__(self, clients: TextClients, info: ModelInfo) -> None:
        self.info = info
        self._clients = clients
        self._jobs: set[Job] = set()

    async def submit(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        """Run one request until each of its choices has finished."""
        job = Job([request])
        taker = Taker(job.choices)
        self._jobs.add(job)
        self._clients.submit(job)
        try:
            while taker.num_open:
                news = await job.mailbox.wait()
                if job.mailbox.alarm is not None:
                    self._end(job)
                for piece in taker.take(news):
                    yield piece
        finally:
            self._clients.release(job)
            self._jobs.discard(job)

    def register_hook(self, pattern: str, callback: Callback) -> Hook:
        """Refuse: the model is in another process."""
        raise InvalidRequest("hooks need the model in this process, not a url", param="url")

    async def cancel(self, request_id: str) -> int:
        """End the live requests of exactly this id; return how many there were."""
        return await self._clients.cancel(request_id, "")

    async def close(self) -> None:
        """End all requests and close the streams."""
        for job in list(self._jobs):
            self._end(job)
        await self._clients.close()

    def _end(self, job: Job) -> None:
        """End here what no tokenizer will end."""
        job.mailbox.alarm = None
        for choice in job.unfinished:
            choice.end(Finish(reason=ABORTED))


async def open_remote(tokenizers: str, model: str | None) -> RemoteClient:
    """Connect to a comma list of host:port; `model` may be left out when there is only one.

    Raises Unavailable when nobody answers, NotFound for another model.
    """
    if "/" in tokenizers or not all(a.rpartition(":")[2].isdigit() for a in tokenizers.split(",")):
        message = f"url must be host:port of tokenizer services, got {tokenizers!r}"
        raise InvalidRequest(message, param="url")
    clients = TextClients(tokenizers)
    try:
        await clients.start()
        return RemoteClient(clients, await _info(clients, model))
    except BaseException:  # who is cancelled leaves no stream that is dialled for ever, either
        await clients.close()
        raise


async def _info(clients: TextClients, model: str | None) -> ModelInfo:
    """Return what is served under this name; raise Unavailable, NotFound."""
    infos = await _served(clients)
    served = {alias: info for info in infos for alias in info.aliases}
    served |= {info.id: info for info in infos}
    if not served:
        raise Unavailable(f"no tokenizer answers at {clients.tokenizers}")
    if model is None and len(infos) == 1:
        return infos[0]
    if model not in served:
        names = list(served)
        raise NotFound(f"model {model!r} is not served there; served: {names}", param="model")
    return served[model]


async def _served(clients: TextClients) -> list[ModelInfo]:
    """Return the served models as soon as a tokenizer is there, none when nobody comes."""
    for _ in range(int(CONNECT_TIMEOUT_S / POLL_S)):
        if models := clients.models():
            return list(models)
        await asyncio.sleep(POLL_S)
    return []
