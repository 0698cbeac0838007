"""Tools spelled in messages read as Qwen2.5's own template writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protos.json_fields import loads
from tokenizer_service.chat_template import ChatTemplate
from tokenizer_service.hermes_prompt import spelled

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wie kalt ist es?"},
    {"role": "assistant", "content": "", "tool_calls": [call("f", {"a": "ß"}), call("f", {})]},
    {"role": "tool", "content": "3"},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "Kalt."},
    {"role": "user", "content": "Und?"},
]


def test_it_reads_as_the_template_that_knows_tools(reference_data: Path) -> None:
    folder = reference_data / "chat_templates"
    knows, not_ = (
        ChatTemplate({"default": (folder / f"{name}.jinja").read_text()}, {}, 10_000)
        for name in ("qwen2.5-instruct", "qwen2-instruct")
    )
    assert not_.render(spelled(TALK, TOOLS, loads)) == knows.render(TALK, TOOLS)
    assert not_.render(spelled(TALK[:2], None, loads)) == knows.render(TALK[:2])


def test_without_a_system_message_there_is_the_usual_one() -> None:
    first, user = spelled(TALK[1:2], TOOLS, loads)
    assert first["role"] == "system" and user == TALK[1]
    assert first["content"].startswith("You are a helpful assistant.\n\n# Tools")
    assert json.dumps(TOOLS[0]) in first["content"]


def test_arguments_may_be_text_and_need_not_be_json() -> None:
    texts = [
        spelled([{"role": "assistant", "content": None, "tool_calls": [one]}], None, loads)[0][
            "content"
        ]
        for one in (call("f", '{"a": 1}'), call("f", "{oops"), {"odd": 1})
    ]
    assert '"arguments": {"a": 1}}' in texts[0] and "{oops" in texts[1] and '"odd": 1' in texts[2]


def test_arguments_may_be_deep() -> None:
    """The reader takes 1024 levels, the writer fewer: then they stay text."""
    for depth in (100, 999, 100_000):
        deep = '{"a": ' * depth + "1" + "}" * depth
        (said,) = spelled([{"role": "assistant", "tool_calls": [call("f", deep)]}], None, loads)
        assert said["content"].count("{") == depth + 1


def test_plain_messages_are_left_alone() -> None:
    plain = [TALK[0], TALK[1], TALK[5]]
    assert spelled(plain, None, loads) == plain
