"""How models write tool calls and mark their thoughts, told from their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenizer_service.formats import knows_null, reasoning_format, tool_format
from tokenizer_service.model_folder import read_model_folder

KNOWN = {
    "qwen2-instruct": ("hermes", ""),
    "qwen2.5-instruct": ("hermes", ""),
    "qwen3": ("hermes", "think_tags"),
    "deepseek-r1-distill-qwen": ("", "think_tags"),
    "deepseek-r1-distill-qwen-first-release": ("", "think_tags"),
    "llama-3.1-instruct": ("llama3", ""),
    "llama-3.2-instruct": ("llama3", ""),
    "tinyllama-chat": ("", ""),
}
FOLDERS = {
    "Qwen2-0.5B-Instruct": "qwen2-instruct",
    "Qwen2.5-0.5B-Instruct": "qwen2.5-instruct",
    "Qwen3-0.6B": "qwen3",
    "DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-distill-qwen",
}


@pytest.mark.parametrize("name", KNOWN)
def test_templates(reference_data: Path, name: str) -> None:
    source = (reference_data / "chat_templates" / f"{name}.jinja").read_text()
    templates = {"default": source}
    assert (tool_format(templates), reasoning_format(templates)) == KNOWN[name]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (
            r"""{{- "<tool_call>\n{\"name\": <name>, \"arguments\": {}}\n</tool_call>" }}""",
            "hermes",
        ),
        ("""{{ '<tool_call>{"name": "' + call.name + '", "arguments": ' }}""", "hermes"),
        ("""{{- '<tool_call>' }}\n{{- '{"name": "' ~ call.name }}""", "hermes"),
        ("""<tool_call>\n{'arguments': <args-dict>, 'name': <name>}\n</tool_call>""", "hermes"),
        (r"<tool_call>\n<function=example>\n<parameter=a>\n1\n</parameter>", ""),  # Qwen3-Coder
        (r"<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>", ""),  # GLM
        ("""within <tool_call> tags: <tool_calls>[{"name": <name>, "arguments": {}}]""", ""),
        ("""{{- "[TOOL_CALLS] [" }}""", "mistral"),
        ("""{{ "[TOOL_CALLS][" + call | tojson }}""", "mistral"),
        ("""{{- '[TOOL_CALLS]' + call.name + '[ARGS]' }}""", ""),  # newer ones
    ],
)
def test_a_format_is_known_by_a_call_that_is_shown(source: str, wanted: str) -> None:
    assert tool_format({"default": f"<|im_start|><tools>{{{{ tools }}}}</tools>{source}"}) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{% if message['content'] is none %}", True),
        ("{%- if message.content is not none -%}", True),
        ('{% if message["content"] == None %}', True),
        ("{% if content != none %}", True),
        ("{% if tools is not none %}{{ message.content }}{% endif %}", False),
        ("{% if message.content is string %}{% elif tools is none %}", False),
        ("{% if message.reasoning_content is not none %}{{ message.content }}{% endif %}", False),
    ],
)
def test_templates_that_ask_for_null(source: str, wanted: bool) -> None:
    assert knows_null({"default": "", "tool_use": source}) is wanted
    assert knows_null({}) is False


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(reference_data: Path, name: str) -> None:
    templates = read_model_folder(reference_data / "models" / name).templates
    assert (tool_format(templates), reasoning_format(templates)) == KNOWN[FOLDERS[name]]


def test_the_template_for_tools_counts_and_no_template_knows_nothing() -> None:
    call = '<tool_call>{"name": "f"'
    named = {"default": "{{ messages }}", "tool_use": f"<tools>{{{{ tools }}}}</tools>{call}"}
    assert tool_format(named) == "hermes"
    assert (tool_format({}), reasoning_format({})) == ("", "")
