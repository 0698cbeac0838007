"""What a model folder tells of its model's habits: how it writes tool calls and marks its thoughts.

Read from the chat template, which shows the model its own words. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenizer_service.reasoning import CLOSE

HERMES = "hermes"
"""`<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`: Qwen2, Qwen2.5, Qwen3, Hermes."""
TOOL_TAGS = ("<tool_call>", "</tool_call>")
LLAMA3 = "llama3"
"""`{"name": …, "parameters": …}`, with `<|python_tag|>` before it or not: Llama 3.1 and 3.2."""
THINK_TAGS = "think_tags"
"""`<think>…</think>`: DeepSeek-R1 and its distillations, Qwen3, QwQ."""

SHOWN_CALL = re.compile(r"""<tool_call>(\\n|[\s'"{}+~-])*\{\\?["'](name|arguments)\b""")
"""A Hermes call in a template's words or code: others write XML between the same tags."""
NULL_TEST = re.compile(r"""\bcontent['"]?\]?\s*(is\s+(not\s+)?|[=!]=\s*)none""", re.IGNORECASE)


def tool_format(templates: Mapping[str, str]) -> str:
    """Return how the model writes tool calls; empty when we know no format for it."""
    source = tool_template(templates)
    if SHOWN_CALL.search(source):
        return HERMES
    if "<|start_header_id|>" in source and '"parameters": ' in source:
        return LLAMA3
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
