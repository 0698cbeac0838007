"""Renders chat templates in a sandbox: a template is a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from common.errors import InvalidRequest, ServiceError, Unprocessable
from protos.json_fields import dumps
from tokenizer_service.chat_template import ChatTemplate, TooLong
from tokenizer_service.sandbox import Answer, Overrun, Sandbox, serve
from tokenizer_service.turns import NOBODY, Asker

TIMEOUT_S = 2.0
"""Longest time a chat template may take."""
MAX_CHARS = 4_000_000
MAX_ERROR_CHARS = 1000
"""Of a template's own words: they may quote a whole prompt, and a reply has to carry them."""

LOOK = b""
"""Asks the child whether the templates can be read."""
MOST_WAITING = 512
"""Of one tenant: half of what the pipeline lets be pending is for others."""


class TemplateProcess:
    """The parent's end. Starts the child at first need; belongs to one event loop."""

    def __init__(
        self,
        sources: Mapping[str, str],
        variables: Mapping[str, Any],
        timeout_s: float = TIMEOUT_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        setup = {
            "sources": dict(sources),
            "variables": dict(variables),
            "max_chars": max_chars,
        }
        self.sandbox = Sandbox(__name__, orjson.dumps(setup), timeout_s, MOST_WAITING)

    async def render(
        self,
        messages: list[Any],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        asker: Asker = NOBODY,
    ) -> str:
        """Return the prompt.

        Raises InvalidRequest with the template's own message when it refuses the input,
        Unprocessable when it takes too long, too much memory or makes too much text, and
        Overloaded when too much of the asker's waits already.
        """
        request = dumps([messages, tools, add_generation_prompt, dict(kwargs or {})])
        try:
            return text_of(orjson.loads(await self.sandbox.ask(request, asker)))
        except Overrun as why:
            raise Unprocessable(
                f"the chat template {why}", param="messages", code="template_limit"
            ) from None

    async def fault(self) -> str:
        """Return why no chat can be rendered, "" when the templates can be read."""
        try:
            return text_of(orjson.loads(await self.sandbox.ask(LOOK, NOBODY)))
        except Overrun as why:
            return f"it {why}"
        except ServiceError as error:
            return error.message

    async def close(self) -> None:
        """End the child; renders that wait are cancelled."""
        await self.sandbox.close()


def text_of(reply: Mapping[str, Any]) -> str:
    """Return the text of a reply, or raise what it says."""
    if "text" in reply:
        return str(reply["text"])
    if reply["kind"] == "limit":
        raise Unprocessable(reply["error"], param="messages", code="template_limit")
    raise InvalidRequest(reply["error"], param="messages", code="template_error")


# ── the child ────────────────────────────────────────────────────────────────────────────────


def prepare(setup: bytes) -> Answer:
    """Return what renders one request."""
    given = orjson.loads(setup)
    template = ChatTemplate(given["sources"], given["variables"], given["max_chars"])
    return lambda request: answer(template, request)


def answer(template: ChatTemplate, request: bytes) -> bytes:
    """Render one request, or look; everything a template can raise becomes words."""
    try:
        if request == LOOK:
            return orjson.dumps({"text": template.fault()})
        messages, tools, add_generation_prompt, kwargs = msgspec.json.decode(request)
        text = template.render(messages, tools, add_generation_prompt, kwargs)
        return orjson.dumps({"text": text})
    except TooLong as error:
        return orjson.dumps({"kind": "limit", "error": str(error)})
    except (MemoryError, RecursionError, OverflowError) as error:
        words = f"the chat template is too large to render ({type(error).__name__})"
        return orjson.dumps({"kind": "limit", "error": words})
    except Exception as error:  # a template may cause any error at all
        words = str(error)[:MAX_ERROR_CHARS].encode(errors="replace").decode()
        return orjson.dumps({"kind": "template", "error": f"chat template: {words}"})


if __name__ == "__main__":
    serve(prepare)
