"""What the Python clients are pointed at, and what they ask of any model, trained or not."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, Field

BASE_URL = os.environ["OPENAI_BASE_URL"]
API_KEY = os.environ.get("OPENAI_API_KEY", "none")
MODEL = os.environ["MILLRACE_MODEL"]
MESSAGES = [{"role": "user", "content": "What is Millrace?"}]


class Fruit(BaseModel):
    """A fruit. Every value is bounded, so that even random weights come to an end."""

    name: Literal["apple", "pear", "plum"]
    count: int = Field(ge=0, le=9)
    ripe: bool


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["apple", "pear", "plum"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
        "ripe": {"type": "boolean"},
    },
    "required": ["name", "count", "ripe"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "store", "description": "Store a fruit.", "parameters": SCHEMA},
}
