"""Bodies that are right, and a reader of event streams."""

from __future__ import annotations

import json
from typing import Any

from tests.support.fake_tokenizer import MODEL


def chat(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more}


def completion(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hi", **more}


def embedding(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hi", **more}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def events(body: str) -> list[dict[str, Any]]:
    """Return the JSON events of a stream that ended well."""
    lines = [line for line in body.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def text_of(stream: list[dict[str, Any]], index: int = 0) -> str:
    """Return the text of one choice of a stream."""
    choices = [c for event in stream for c in event["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)
