"""Renderings are those of transformers and llama.cpp, letter for letter."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from tests.tokenizer_service.conftest import reference_cases
from tokenizer_service.chat_template import ChatTemplate, TooLong

USER = [{"role": "user", "content": "Hi"}]


def template(source: str, max_chars: int = 10_000, **variables: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, variables, max_chars)


def rendered(source: str, **rest: Any) -> str:
    return template(source).render(USER, **rest)


def test_transformers_cases(reference_data: Path) -> None:
    folder = reference_data / "chat_templates"
    for case in reference_cases(folder / "cases.json"):
        variables = {k: case[k] for k in ("bos_token", "eos_token") if case[k] is not None}
        source = (folder / f"{case['template']}.jinja").read_text()
        chat = template(source, **variables)
        arguments = (
            case["messages"], case["tools"], case["add_generation_prompt"], case["kwargs"],
        )  # fmt: skip
        if "expected" in case:
            assert chat.render(*arguments) == case["expected"], case["name"]
            continue
        with pytest.raises(Exception) as caught:
            chat.render(*arguments)
        assert type(caught.value).__name__ == case["expected_error"]
        assert case["error_message"] in str(caught.value)


def test_llamacpp_cases(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "chat_templates/llamacpp_cases.json"):
        variables = {k: case[k] for k in ("bos_token", "eos_token") if case[k] is not None}
        text = template(case["template_source"], **variables).render(
            case["messages"], case["tools"], case["add_generation_prompt"]
        )
        assert text == case["expected"], case["name"]


def test_tojson_escapes_neither_html_nor_unicode() -> None:
    assert rendered("{{ {'a': '<é>&'} | tojson }}") == '{"a": "<é>&"}'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}") == '{"a": 2, "b": 1}'
    assert rendered("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"
    assert rendered("{{ [1, 2] | tojson(separators=(',', ':')) }}") == "[1,2]"


def test_blocks_are_trimmed_and_loops_can_break() -> None:
    assert rendered("  {% if true %}\n a\n  {% endif %}\nb") == " a\nb"
    assert rendered("{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"  # noqa: E501  # fmt: skip


def test_generation_blocks_are_transparent() -> None:
    assert rendered("{% generation %}x{% endgeneration %}y") == "xy"


def test_the_clock_is_at_hand() -> None:
    assert rendered("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(TemplateError, match="only one system message"):
        rendered("{{ raise_exception('only one system message') }}")


def test_tool_use_is_chosen_when_there_are_tools() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"}, {}, 99)
    assert chat.render(USER) == "plain"
    assert chat.render(USER, []) == "plain"
    assert chat.render(USER, [{"type": "function"}]) == "1 tools"
    with pytest.raises(TemplateError, match="rag"):
        ChatTemplate({"rag": "x"}, {}, 99).render(USER)


def test_too_much_text_is_refused() -> None:
    chat = template("{% for i in range(1000) %}{{ 'aaaa' }}{% endfor %}", max_chars=100)
    with pytest.raises(TooLong, match="100"):
        chat.render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_the_sandbox_has_no_way_out(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered(source)
