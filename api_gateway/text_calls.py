"""Calls to the tokenizers that are no streams: text ↔ ids, and questions to the engines."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import grpc
import orjson

from api_gateway.clients import TextClients
from api_gateway.link import checked_size
from common.errors import Internal, InvalidRequest, ServiceError, Unavailable, from_detail
from protos.columns import unpack
from protos.common_pb2 import Query, QueryAnswer
from protos.tokenizer_pb2 import AskReply, ConvertReply, ConvertRequest, TextRequest

CONVERT_TIMEOUT_S = 30.0
ASK_TIMEOUT_S = 3.0
PATIENCE_S = 10.0
"""With a tokenizer when there is another one: its stream is given up after as long a silence."""


class WentAway(Unavailable):
    """The tokenizer under a call is lost, hangs, or cannot be reached."""


class TextCalls:
    """One instance serves every request of the process."""

    def __init__(self, clients: TextClients) -> None:
        self._clients = clients

    async def convert(self, request: ConvertRequest) -> ConvertReply:
        """Encode, decode or render; raises what the tokenizer says, or Unavailable.

        One that goes away leaves the call to the next.
        """
        lost = Unavailable("no tokenizer is connected", code="no_tokenizer", retry_after_s=1)
        stubs = self._clients.stubs(request.model)
        for stub in stubs:
            timeout_s = CONVERT_TIMEOUT_S if stub is stubs[-1] else PATIENCE_S
            try:
                return await self._convert(stub, request, timeout_s)
            except WentAway as error:
                lost = error
        raise lost

    @staticmethod
    async def _convert(stub: Any, request: ConvertRequest, timeout_s: float) -> ConvertReply:
        checked_size(request)
        call = stub.Convert(request, timeout=timeout_s)
        reply: ConvertReply = await answered(call, "convert")
        if reply.HasField("error"):
            raise from_detail(reply.error)
        return reply

    async def convert_prompt(self, request: ConvertRequest) -> ConvertReply:
        """The same of a request's `prompt`, which an error then names."""
        try:
            return await self.convert(request)
        except InvalidRequest as error:
            message = error.message.replace("tokens", "prompt", 1)
            raise InvalidRequest(message, param="prompt", code=error.code) from error

    async def prompt_ids(self, request: TextRequest) -> list[int]:
        """Return the ids of a request's prompt, as its answer would be drawn behind them."""
        asked = ConvertRequest(model=request.model, tenant=request.limits.tenant)
        kind = request.WhichOneof("input")
        if kind == "chat":
            asked.chat.CopyFrom(request.chat)
            return unpack((await self.convert(asked)).token_ids).tolist()
        if kind == "prompt":
            asked.text = request.prompt
            asked.no_special_tokens = request.text.no_special_tokens
        else:
            asked.token_ids = request.prompt_token_ids
        ids = unpack((await self.convert_prompt(asked)).token_ids).tolist()
        if not ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        return ids

    async def ask(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return what each engine answers, by engine; those that fail are left out.

        Raises the first error when no engine answers, Unavailable when there is none.
        """
        query = Query(query_id=1, kind=kind, body_json=orjson.dumps(body))
        found: dict[str, Any] = {}
        errors: list[ServiceError] = []
        for stub in self._clients.stubs():  # in turn: what resets a thing tells what there was
            try:
                reply: AskReply = await answered(stub.Ask(query, timeout=ASK_TIMEOUT_S), kind)
            except ServiceError as error:
                errors.append(error)
            else:
                note_answers(reply, found, errors)
        if not found:
            raise errors[0] if errors else Unavailable("no engine is connected", retry_after_s=1)
        return found


def note_answers(reply: AskReply, found: dict[str, Any], errors: list[ServiceError]) -> None:
    """Take each engine's first answer: several tokenizers may know the same engine."""
    for told in reply.answers:
        answer: QueryAnswer = told.answer
        if answer.HasField("error"):
            errors.append(from_detail(answer.error))
        elif told.engine not in found:
            found[told.engine] = orjson.loads(answer.body_json or b"{}")


async def answered(call: Awaitable[Any], what: str) -> Any:
    """Return the reply; a failure of the call itself becomes a ServiceError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            raise WentAway(f"{what}: the tokenizer went away", retry_after_s=1) from error
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise WentAway(f"{what}: no answer in time", retry_after_s=1) from error
        raise Internal(f"{what} failed below the gateway: {error.code().name}") from error
