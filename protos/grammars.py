"""How the text of a grammar is read, at the door as in the workers."""

from __future__ import annotations

import re

RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def as_lark(text: str) -> str:
    """Return `text`, Lark or EBNF as llama.cpp and vLLM write it (`root ::= …`), as Lark.

    Needs llguidance. Raises ValueError that says why when it is EBNF and wrong.
    """
    if not RULE.search(text):
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # it raises plain ones, and RecursionError
        raise ValueError(str(error)) from error
