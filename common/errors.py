"""The exceptions a user or an operator can cause, and what each means outside.

ServiceError
├── InvalidRequest     400  a field is wrong; `param` names it
├── Unauthorized       401  no key, or an unknown one
├── Forbidden          403  the key may not do this
├── NotFound           404  unknown model, route or request
├── DeadlineExceeded   408  the request's own deadline has passed
├── PayloadTooLarge    413  a body over the limit, a prompt over the KV cache
├── Unprocessable      422  a template or schema refused the input
├── Overloaded         429  a queue or quota is full; `retry_after_s` says when to come back
├── Cancelled          499  the client is gone, or asked to cancel
├── Internal           500  our fault
└── Unavailable        503  loading, draining, or the tier below is gone
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar, NoReturn

CANNOT_WORK = 78
"""Exit status (EX_CONFIG of sysexits.h) of a process that would end so each time it is started."""


def refuse_to_work(why: str) -> NoReturn:
    """End the process with one line: its settings or its model are wrong."""
    sys.stderr.write(f"{why}\n")
    sys.exit(CANNOT_WORK)


class PortTaken(Exception):
    """A process cannot listen where it is told to; the message names the address."""


class ServiceError(Exception):
    """Root of the tree. `message` says what, which value, and what is allowed."""

    http_status: ClassVar[int] = 500
    openai_type: ClassVar[str] = "internal_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s

    def fields(self) -> dict[str, Any]:
        """Return the fields of the wire's `ErrorDetail`."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "param": self.param or "",
            "code": self.code or "",
            "retry_after_ms": int((self.retry_after_s or 0) * 1000),
        }


class InvalidRequest(ServiceError):
    http_status, openai_type, default_code = 400, "invalid_request_error", "invalid_value"


class Unauthorized(ServiceError):
    http_status, openai_type, default_code = 401, "authentication_error", "invalid_api_key"


class Forbidden(ServiceError):
    http_status, openai_type = 403, "permission_error"


class NotFound(ServiceError):
    http_status, openai_type = 404, "not_found_error"


class DeadlineExceeded(ServiceError):
    http_status, openai_type, default_code = 408, "timeout_error", "deadline_exceeded"


class PayloadTooLarge(ServiceError):
    http_status, openai_type = 413, "invalid_request_error"


class Unprocessable(ServiceError):
    http_status, openai_type = 422, "invalid_request_error"


class Overloaded(ServiceError):
    http_status, openai_type, default_code = 429, "rate_limit_error", "overloaded"


class Cancelled(ServiceError):
    http_status, openai_type, default_code = 499, "cancelled_error", "cancelled"


class Internal(ServiceError):
    default_code = "internal"


class Unavailable(ServiceError):
    http_status, openai_type, default_code = 503, "unavailable_error", "unavailable"


BY_KIND = {cls.__name__: cls for cls in ServiceError.__subclasses__()}


def from_detail(detail: Any) -> ServiceError:
    """Rebuild the exception from any object with the fields of `ErrorDetail`."""
    return BY_KIND.get(detail.kind, Internal)(
        detail.message,
        param=detail.param or None,
        code=detail.code or None,
        retry_after_s=detail.retry_after_ms / 1000 or None,
    )
