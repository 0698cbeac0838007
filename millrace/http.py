"""The few HTTP calls of the command line: plain JSON, and streams of server-sent events."""

from __future__ import annotations

import http.client
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import msgspec

from common.settings import inherited
from millrace.errors import CommandError

CONNECT_TIMEOUT_S = 10.0


class Server:
    """An OpenAI-compatible server at `url` (with or without /v1); each call is a connection."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        key = api_key or inherited({}).get("OPENAI_API_KEY")
        self._headers: dict[str, str | bytes] = {"Content-Type": "application/json"}
        if key:  # its bytes as they were typed: a text would go out as latin-1
            self._headers["Authorization"] = f"Bearer {key}".encode(errors="surrogateescape")

    def get(self, path: str) -> Any:
        """Return the JSON of one GET; raise CommandError with what the server says."""
        with closing(self._connect()) as connection:
            body = self._reply(connection, "GET", path, None).read()
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise CommandError(f"{self.url}{path} answers what is no JSON: {error}") from error

    def models(self) -> list[dict[str, Any]]:
        """Return the models that are served, one at least; raise CommandError."""
        reply = self.get("/v1/models")
        try:
            models = [model for model in reply["data"] if isinstance(model["id"], str)]
        except (KeyError, TypeError) as error:
            raise CommandError(f"{self.url}/v1/models answers no list of models") from error
        if not models:
            raise CommandError(f"{self.url} serves no model yet")
        return models

    def events(self, path: str, body: dict[str, Any]) -> Generator[Any, None, None]:
        """POST `body` and yield the JSON of every event; closing the iterator ends the request.

        Raises CommandError with what the server says, also where its stream breaks off.
        """
        try:
            sent = msgspec.json.encode(body)
        except UnicodeEncodeError as error:  # an argument whose bytes are no text
            raise CommandError(f"what is to be sent is not UTF-8 text: {error}") from error
        with closing(self._connect()) as connection:
            reply = self._reply(connection, "POST", path, sent)
            for event in self._events(path, reply):
                decoded = self._decoded(path, event)
                if decoded.get("error") is not None:
                    raise CommandError(_message(event))
                yield decoded

    def _decoded(self, path: str, event: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(event, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            shown = event[:100].decode(errors="replace")
            raise CommandError(f"{self.url}{path}: no event of ours: {shown!r}: {error}") from error

    def _events(self, path: str, reply: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the data of every event before `[DONE]`; raise CommandError if that never comes."""
        why = "the connection ended before the answer did"
        try:
            for line in reply:
                event = line.strip().removeprefix(b"data:").strip()
                if event == b"[DONE]":
                    return
                if line.startswith(b"data:") and line.endswith(b"\n"):
                    yield event
        except (OSError, http.client.HTTPException) as error:
            why = f"{why}: {error}"
        raise CommandError(f"{self.url}{path}: {why}")

    def _connect(self) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(self.url)
        except ValueError as error:
            raise CommandError(f"{self.url!r} is not an address: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise CommandError(f"{self.url!r} is not an http:// or https:// address")
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        try:
            connection = kind(parts.netloc, timeout=CONNECT_TIMEOUT_S)
            connection.connect()
        except http.client.InvalidURL as error:
            raise CommandError(f"{self.url!r} is not an address: {error}") from error
        except OSError as error:
            raise CommandError(f"no answer from {self.url}: {error}") from error
        connection.sock.settimeout(None)  # an answer may take its time
        return connection

    def _reply(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, urlsplit(self.url).path + path, body, self._headers)
            reply = connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:  # or a key no header has
            raise CommandError(f"{self.url}{path}: {error}") from error
        if reply.status != 200:
            raise CommandError(f"{self.url}{path}: {reply.status} {_message(reply.read())}")
        return reply


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
