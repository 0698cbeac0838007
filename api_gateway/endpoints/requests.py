"""POST /v1/requests/{id}/cancel: ends a live request of the caller's tenant, whoever serves it."""

from __future__ import annotations

from api_gateway.asgi import REQUEST_ID, Call
from api_gateway.clients import TextClients
from common.errors import NotFound

PREFIXES = ("chatcmpl-", "cmpl-")


class Requests:
    """Cancels by request id or by the id of the reply."""

    def __init__(self, clients: TextClients) -> None:
        self._clients = clients

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


def spellings(given: str) -> list[str]:
    """Return the request ids that `given` may stand for: as it is, then without a prefix."""
    bare = [given.removeprefix(prefix) for prefix in PREFIXES if given.startswith(prefix)]
    return [spelling for spelling in (given, *bare) if REQUEST_ID.fullmatch(spelling)]
