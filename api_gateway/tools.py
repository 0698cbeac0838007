"""The tools of a chat request: checked, and who reads the calls out of the answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from api_gateway.checks import check_count, refuse, schema_text
from api_gateway.parsers.call_grammar import forced
from api_gateway.parsers.calls import Offer, ToolFormat, ToolParser
from api_gateway.parsers.hermes import Hermes
from api_gateway.parsers.llama3 import Llama3
from api_gateway.parsers.mistral import Mistral
from api_gateway.schema import ChatRequest, Function, NamedTool, Tool
from protos import limits
from protos.common_pb2 import ModelInfo

FORMATS: dict[str, ToolFormat] = {
    "hermes": Hermes(),
    "llama3": Llama3(),
    "mistral": Mistral(),
}
FORCED_ANYWHERE = FORMATS["hermes"]  # for models without a format: a grammar needs no training
NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.MAX_TOOL_NAME_CHARS}}}")
FIELDS = [(field.name, field.encode_name) for field in msgspec.structs.fields(Function)]
"""Of a function, and how a client writes them."""


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How calls are written, read and, where they must come, forced."""

    format: ToolFormat
    offer: Offer
    calls_grammar: str
    """Rules in Lark that stand for the calls; empty where no answer is held to them."""
    is_forced: bool
    names: tuple[str, ...] = ()
    """Of the functions, in the order of the rules."""

    def parser(self) -> ToolParser:
        return self.format.parser(self.offer)

    def grammar(self) -> str | None:
        """Return the grammar of an answer that must be calls; None when it need not."""
        return forced(self.calls_grammar) if self.is_forced else None


def check_tools(tools: Sequence[Tool]) -> None:
    """Check names and schemas; names must differ. Marks for caches go: all prefixes are cached."""
    check_count(tools, limits.MAX_TOOLS, "tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        tool.cache_control, tool.function.cache_control = msgspec.UNSET, None
        param = f"tools[{index}].function"
        name = tool.function.name
        if not NAME.fullmatch(name):
            most = limits.MAX_TOOL_NAME_CHARS
            raise refuse(f"{param}.name must be 1 to {most} of A-Z a-z 0-9 _ -", f"{param}.name")
        if name in seen:
            raise refuse(f"{param}.name: {name!r} is there twice", f"{param}.name")
        seen.add(name)
        for field, written in FIELDS:
            if isinstance(value := getattr(tool.function, field), dict):
                schema_text(value, f"{param}.{written}")
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise refuse(f"{param}.parameters.type must be object", f"{param}.parameters.type")


def plan_tools(body: ChatRequest, info: ModelInfo) -> ToolPlan | None:
    """Return the plan, None when no tool may be called; raise InvalidRequest."""
    tools, choice = body.tools or [], body.tool_choice
    check_tools(tools)
    if choice == "none" or not tools and choice in (None, "auto"):
        return None
    if not tools:
        raise refuse("tool_choice needs tools", "tool_choice")
    wanted = chosen(tools, choice)
    is_forced = choice not in (None, "auto")
    tool_format = FORMATS.get(info.tool_format)
    if tool_format is None:
        if not is_forced:
            raise refuse(
                f"the chat template of {info.id} shows no tools, or calls in a form that is not "
                "read here: a call can only be forced, with tool_choice required or a named "
                "function",
                "tools",
                "tools_not_supported",
            )
        tool_format = FORCED_ANYWHERE
    is_single = isinstance(choice, NamedTool) or body.parallel_tool_calls is False
    names = tuple(tool.function.name for tool in wanted)
    rules = ""  # to make them takes longer than all else that is done with many tools
    if is_forced or has_form(body):
        functions = [tool.function for tool in wanted]
        told = [{"name": one.name, "parameters": one.parameters} for one in functions]
        rules = tool_format.grammar(told, is_single, info.tag_tokens)
    return ToolPlan(
        format=tool_format,
        offer=Offer(frozenset(names), max_calls=1 if is_single else None, is_eager=is_forced),
        calls_grammar=rules,
        is_forced=is_forced,
        names=names,
    )


def has_form(body: ChatRequest) -> bool:
    """Whether an answer without calls must have a form."""
    wanted = body.response_format
    return body.structured_outputs is not None or (wanted is not None and wanted.type != "text")


def chosen(tools: Sequence[Tool], choice: str | NamedTool | None) -> Sequence[Tool]:
    """Return the tools that may be called."""
    if not isinstance(choice, NamedTool):
        return tools
    name = choice.function.name
    wanted = [tool for tool in tools if tool.function.name == name]
    if not wanted:
        raise refuse(
            f"tool_choice names {name[:64]!r}, which is not among the tools",
            "tool_choice.function.name",
        )
    return wanted


def call_id(request_id: str, choice: int, index: int) -> str:
    """Return the id of call number `index`: the same for the same request."""
    told = f"{request_id}\0{choice}\0{index}".encode()
    return f"call_{hashlib.sha256(told).hexdigest()[:24]}"
