"""What a model folder tells of its model's habits: how it writes tool calls and marks its thoughts.

Read from the chat template, which shows the model its own words. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tokenizer_service.content_parts import may_read_parts
from tokenizer_service.reasoning import CLOSE

HERMES = "hermes"
"""`<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`: Qwen2, Qwen2.5, Qwen3, Hermes."""
TOOL_TAGS = ("<tool_call>", "</tool_call>")
LLAMA3 = "llama3"
"""`{"name": …, "parameters": …}`, with `<|python_tag|>` before it or not: Llama 3.1 and 3.2."""
MISTRAL = "mistral"
"""`[TOOL_CALLS] [{"name": …, "arguments": …}]`: Mistral 7B v0.3, Nemo."""
MISTRAL_TAG = "[TOOL_CALLS]"
THINK_TAGS = "think_tags"
"""`<think>…</think>`: DeepSeek-R1 and its distillations, Qwen3, QwQ."""

SHOWN_CALL = re.compile(r"""<tool_call>(\\n|[\s'"{}+~-])*\{\\?["'](name|arguments)\b""")
"""A Hermes call in a template's words or code: others write XML between the same tags."""
NULL_TEST = re.compile(r"""\bcontent['"]?\]?\s*(is\s+(not\s+)?|[=!]=\s*)none""", re.IGNORECASE)
ID_LENGTH_TEST = re.compile(r"""\bid['"]?\]?\s*\|\s*length\s*[!=]=\s*9\b""")
MISTRAL_LIST = re.compile(r"""\[TOOL_CALLS\]\s*['"+~\s]*\[""")


class TemplateNeeds(NamedTuple):
    """What a chat template asks of the messages that it is given."""

    spelled_tools: bool
    """It would leave tools out: messages spell them instead."""
    null_content: bool
    """It tells null content from empty text."""
    parts: bool
    """It may want texts of some roles as parts, and is to be looked at for these."""
    short_ids: bool
    """It takes only ids of calls that have nine letters or digits."""


def needs_of(templates: Mapping[str, str]) -> TemplateNeeds:
    return TemplateNeeds(
        spelled_tools=spells_no_tools(templates),
        null_content=knows_null(templates),
        parts=may_read_parts(templates),
        short_ids=any(ID_LENGTH_TEST.search(source) for source in templates.values()),
    )


def tool_format(templates: Mapping[str, str]) -> str:
    """Return how the model writes tool calls; empty when we know no format for it."""
    source = tool_template(templates)
    if SHOWN_CALL.search(source):
        return HERMES
    if "<|start_header_id|>" in source and '"parameters": ' in source:
        return LLAMA3
    if MISTRAL_LIST.search(source):
        return MISTRAL
    return HERMES if spells_no_tools(templates) else ""


def spells_no_tools(templates: Mapping[str, str]) -> bool:
    """Whether it is a ChatML template that would leave tools out silently: then we spell them."""
    source = tool_template(templates)
    return "<|im_start|>" in source and "tools" not in source


def knows_null(templates: Mapping[str, str]) -> bool:
    """Whether a template asks if content is null, as DeepSeek's do: they write calls only then."""
    return any(NULL_TEST.search(source) for source in templates.values())


def tool_template(templates: Mapping[str, str]) -> str:
    """Return the template that is shown tools, empty when there is none."""
    return templates.get("tool_use") or templates.get("default", "")


def reasoning_format(templates: Mapping[str, str]) -> str:
    """Return how the model marks its thoughts; empty when it does not."""
    return THINK_TAGS if CLOSE in templates.get("default", "") else ""
