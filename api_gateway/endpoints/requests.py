"""/v1/requests/{id}: the state of a live request, and its end; /v1/requests/explain: a dry run."""

from __future__ import annotations

from typing import Any

from api_gateway.asgi import REQUEST_ID, Call
from api_gateway.clients import TextClients
from api_gateway.door import Door
from api_gateway.forms import CHAT, COMPLETION, Form
from api_gateway.parsing import decode
from api_gateway.text_calls import TextCalls
from api_gateway.translate import Order
from common.errors import NotFound
from protos.common_pb2 import SCORE
from protos.tokenizer_pb2 import TextRequest

PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")


class Requests:
    """Knows requests by their id or by the id of their reply."""

    def __init__(self, clients: TextClients, calls: TextCalls, door: Door) -> None:
        self._clients = clients
        self._calls = calls
        self._door = door

    async def cancel(self, call: Call) -> None:
        """Answer how many were ended; raises NotFound when none of that id is live."""
        call.report = {}
        given = call.params["id"]
        for request_id in spellings(given):
            if num_cancelled := await self._clients.cancel(request_id, call.tenant):
                call.report |= {"cancelled_id": request_id, "cancelled": num_cancelled}
                await call.reply_json(200, {"id": given, "cancelled": num_cancelled})
                return
        raise NotFound("no live request has this id", code="request_not_found")

    async def state(self, call: Call) -> None:
        """Answer what the engines do with a live request; raises NotFound."""
        given = call.params["id"]
        for request_id in spellings(given):
            body = {"request_id": request_id, "tenant": call.tenant}
            answers = await self._calls.ask("request_state", body)
            choices = [
                {"engine": engine, **choice}
                for engine, answer in sorted(answers.items())
                for choice in answer.get("choices", [])
            ]
            if choices:
                await call.reply_json(200, {"id": given, "object": "request", "choices": choices})
                return
        raise NotFound("no live request has this id", code="request_not_found")

    async def explain(self, call: Call) -> None:
        """Answer what a chat or completion request would cost now, without running it."""
        with self._door.admission.enter(call.tenant):
            order = await self._order(call)
            prompts = []
            for request in order.requests:
                token_ids = await self._calls.prompt_ids(request)
                answers = await self._calls.ask("explain", question(request, token_ids))
                engines = [{"engine": name, **told} for name, told in sorted(answers.items())]
                prompts.append({"prompt_tokens": len(token_ids), "engines": engines})
            await call.reply_json(
                200, {"object": "request.explanation", "model": order.model, "prompts": prompts}
            )

    async def _order(self, call: Call) -> Order:
        """Return the order of the body, which is a chat's when it has messages."""
        content = await self._door.content(call)
        form: Form[Any] = CHAT if "messages" in decode(content) else COMPLETION
        return await self._door.order(call, form, content)


def question(request: TextRequest, token_ids: list[int]) -> dict[str, Any]:
    """Return the body of an `explain` query: what the engine must know to judge a request."""
    limits = request.limits
    draws = limits.kind != SCORE
    max_tokens = limits.max_tokens if limits.HasField("max_tokens") else None
    return {
        "request_id": request.request_id,
        "tenant": limits.tenant,
        "cache_salt": limits.cache_salt.hex(),
        "priority": limits.priority,
        "n": limits.n,
        "kind": "generate" if draws else "score",
        # the least that the engine takes of one that draws nothing
        "max_tokens": max_tokens if draws else 1,
        "prompt_logprobs": limits.prompt_logprobs if limits.HasField("prompt_logprobs") else None,
        "n_keep": limits.n_keep if limits.HasField("n_keep") else None,
        "token_ids": token_ids,
    }


def spellings(given: str) -> list[str]:
    """Return the request ids that `given` may stand for: as it is, then without a prefix."""
    bare = [given.removeprefix(prefix) for prefix in PREFIXES if given.startswith(prefix)]
    return [spelling for spelling in (given, *bare) if REQUEST_ID.fullmatch(spelling)]
