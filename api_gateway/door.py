"""The way in: one body within bounds, typed; and who asks for which model."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from api_gateway.admission import Admission
from api_gateway.asgi import Call
from api_gateway.checks import refuse
from api_gateway.clients import TextClients
from api_gateway.forms import Form
from api_gateway.parsing import parse
from api_gateway.translate import Caller, Order

R = TypeVar("R", bound=msgspec.Struct)


class Door:
    """Shared by all endpoints that take a body."""

    def __init__(
        self,
        clients: TextClients,
        admission: Admission,
        max_body_bytes: int,
        is_lenient: bool,
        cache_secret: bytes,
    ) -> None:
        self.admission = admission
        self._clients = clients
        self._max_body_bytes = max_body_bytes
        self._is_lenient = is_lenient
        self._cache_secret = cache_secret

    async def read(self, call: Call, cls: type[R]) -> R:
        """Return the typed body; raise InvalidRequest or PayloadTooLarge."""
        return self.of(call, await self.content(call), cls)

    async def content(self, call: Call) -> bytes:
        """Return the body; raise PayloadTooLarge."""
        return await call.body(self._max_body_bytes)

    def of(self, call: Call, content: bytes, cls: type[R]) -> R:
        """Return what stands in a body; raise InvalidRequest.

        From here on the call goes by the request id in the body, where there is one.
        """
        body = parse(content, cls, self._is_lenient)
        call.adopt_request_id(getattr(body, "request_id", None))
        return body

    async def order(self, call: Call, form: Form[Any], content: bytes | None = None) -> Order:
        """Return what a body of this form asks for; `content` when it was taken already.

        Raises InvalidRequest, PayloadTooLarge, NotFound or Unavailable.
        """
        body = self.of(call, await self.content(call) if content is None else content, form.body)
        form.check(body)
        caller = await self.caller(call, body.model)
        if body.model is None:
            self._check_that_it_is_the_one()
        return form.order(body, caller)

    def _check_that_it_is_the_one(self) -> None:
        """Refuse to choose among several models for who names none."""
        if len(served := [info.id for info in self._clients.models()]) > 1:
            message = f"model is required where several are served: {', '.join(served)}"
            raise refuse(message, "model", "missing_field")

    async def caller(self, call: Call, model: str | None) -> Caller:
        """Return who asks. Raises NotFound for a model that is not served."""
        info = await self._clients.model(model)
        return Caller(call.request_id, call.tenant, info, self._cache_secret)
