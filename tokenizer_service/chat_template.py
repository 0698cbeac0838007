"""Chat template + messages → prompt text, in a sandboxed Jinja with the words templates rely on.

Pure and blocking: limits of time and memory are those of the process it runs in
(`template_process.py`). Knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TooLong(Exception):
    """The template makes more text than it may."""


class GenerationTag(Extension):
    """Accepts `{% generation %}…{% endgeneration %}`, which marks text for training only."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """The templates of one model folder; compiled at first use."""

    def __init__(
        self, sources: Mapping[str, str], variables: Mapping[str, Any], max_chars: int
    ) -> None:
        self._sources = dict(sources)
        self._variables = dict(variables)
        self._max_chars = max_chars
        self._environment = environment()
        self._compiled: dict[str, Template] = {}

    def render(
        self,
        messages: list[Any],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt; raise jinja2.TemplateError, TooLong, or what the template causes."""
        template = self._template(bool(tools))
        pieces: list[str] = []
        room = self._max_chars
        for piece in template.generate(
            {
                **self._variables,
                **(kwargs or {}),
                "messages": messages,
                "tools": tools or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        ):
            room -= len(piece)
            if room < 0:
                raise TooLong(f"the chat template makes more than {self._max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)

    def fault(self) -> str:
        """Return which of the templates cannot be read, and why; "" when all can."""
        for name, source in self._sources.items():
            try:
                self._environment.compile(source)
            except (TemplateError, RecursionError) as error:
                return f"{name}: {error}"
        return ""

    def _template(self, has_tools: bool) -> Template:
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._compiled:
            if name not in self._sources:
                raise TemplateError(f"no template named default, only {sorted(self._sources)}")
            self._compiled[name] = self._environment.from_string(self._sources[name])
        return self._compiled[name]


def environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox with the filters and functions that published templates use."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = strftime_now
    return sandbox


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without HTML escapes, unlike Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    """Refuse the messages, in the template's own words."""
    raise TemplateError(message)


def strftime_now(format: str) -> str:
    """Return the local date or time."""
    return datetime.now().strftime(format)
