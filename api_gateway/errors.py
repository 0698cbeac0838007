"""ServiceError → OpenAI's error JSON, its headers, and the error frame of a stream."""

from __future__ import annotations

import math
from typing import Any

import orjson

from common.errors import Cancelled, DeadlineExceeded, Internal, ServiceError, from_detail
from protos.common_pb2 import ABORTED, DEADLINE, Finish

Headers = list[tuple[bytes, bytes]]


class MethodNotAllowed(ServiceError):
    """The route exists, but not with this method."""

    http_status = 405
    openai_type = "invalid_request_error"
    default_code = "method_not_allowed"


class HeadTooLarge(ServiceError):
    """Request line and headers are over the limit."""

    http_status = 431
    openai_type = "invalid_request_error"
    default_code = "head_too_large"


def error_object(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return `{"error": …}` as OpenAI clients read it, with our request id."""
    fields: dict[str, Any] = {
        "message": error.message,
        "type": error.openai_type,
        "param": error.param,
        "code": error.code,
        "request_id": request_id,
    }
    if error.retry_after_s is not None:
        fields["retry_after_ms"] = int(error.retry_after_s * 1000)
    return {"error": fields}


def error_headers(error: ServiceError) -> Headers:
    """Return Retry-After, WWW-Authenticate or Allow where the status asks for them."""
    headers: Headers = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if error.http_status in (401, 403, 408):  # clients would ask again, Claude Code for minutes
        headers.append((b"x-should-retry", b"false"))
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.message.rpartition(" ")[2].encode()))
    return headers


def error_frame(error: ServiceError, request_id: str) -> bytes:
    """Return the last frame of a stream that failed after its first token."""
    return b"event: error\ndata: %b\n\n" % orjson.dumps(error_object(error, request_id))


def of_finish(finish: Finish, prompt: int | None = None) -> ServiceError:
    """Return the error behind a Finish that is neither STOPPED nor LENGTH.

    `prompt` is the place of its prompt in a request of several.
    """
    if finish.reason == ABORTED:
        return Cancelled("the request was cancelled")
    if finish.HasField("error"):
        error = from_detail(finish.error)
        if prompt is not None and error.param in ("prompt", "input"):
            error.param = f"{error.param}[{prompt}]"
            error.message = f"{error.param}: {error.message}"
        return error
    if finish.reason == DEADLINE:
        return DeadlineExceeded("the request's deadline has passed")
    return Internal("the request failed")
