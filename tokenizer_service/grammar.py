"""The door for structured output: a grammar that cannot be compiled is refused with the reason.

Checks with llguidance, the engine that the workers compile with; it parses and never enumerates.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from common.errors import InvalidRequest, Unprocessable
from protos.common_pb2 import Grammar
from protos.limits import MAX_CHOICES, MAX_GRAMMAR_CHARS

TIMEOUT_S = 2.0
THREADS = 2
"""One that hangs does not stop the others."""


class GrammarDoor:
    """Checks grammars in threads of its own, as one may take long."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")

    async def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest that says why, or Unprocessable when the check takes too long."""
        param = param_of(grammar)
        if len(grammar.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"{param} has {len(grammar.text)} characters, at most {MAX_GRAMMAR_CHARS} are "
                "allowed",
                param=param,
            )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                why = await loop.run_in_executor(self._executor, fault, grammar)
        except TimeoutError:
            message = f"{param} takes longer than {self._timeout_s:g} s to check"
            raise Unprocessable(message, param=param, code="grammar_limit") from None
        if why:
            raise InvalidRequest(f"{param}: {why}", param=param, code="invalid_grammar")

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def param_of(grammar: Grammar) -> str:
    """Return the field that clients write this kind of grammar in."""
    return "response_format" if grammar.kind == Grammar.JSON_SCHEMA else "structured_outputs"


def fault(grammar: Grammar) -> str:
    """Return why this is no grammar, empty when it is one; blocks."""
    if grammar.kind == Grammar.CHOICE:
        return choice_fault(grammar.text)
    try:
        from llguidance import LLMatcher
    except ImportError:
        return "structured output needs the package llguidance, which is not installed here"
    if grammar.kind == Grammar.JSON_SCHEMA:
        if why := schema_fault(grammar.text):
            return why
        compiled = LLMatcher.grammar_from_json_schema(grammar.text)
    elif grammar.kind == Grammar.REGEX:
        compiled = LLMatcher.grammar_from_regex(grammar.text)
    elif grammar.kind == Grammar.LARK:
        compiled = LLMatcher.grammar_from_lark(grammar.text)
    else:
        return f"grammar kind {grammar.kind} is not known"
    return str(LLMatcher.validate_grammar(compiled) or "").strip()


def schema_fault(text: str) -> str:
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"the schema is not valid JSON: {error}"
    return "" if isinstance(schema, dict | bool) else "a schema must be an object"


def choice_fault(text: str) -> str:
    try:
        choices: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"choice is not valid JSON: {error}"
    if not isinstance(choices, list) or not all(isinstance(c, str) and c for c in choices):
        return "choice must be a list of strings that are not empty"
    if not 1 <= len(choices) <= MAX_CHOICES:
        return f"choice has {len(choices)} strings, 1 to {MAX_CHOICES} are allowed"
    return ""
