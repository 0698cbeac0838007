"""What the benchmarks are told to run through, and a result as one line."""

from __future__ import annotations

from typing import Any


def numbers(text: str) -> list[int]:
    """Return `1,8,16` as a list; raise ValueError for what is none."""
    return [int(part) for part in text.split(",")]


def line(row: dict[str, Any]) -> str:
    return "  ".join(f"{name}={value}" for name, value in row.items())
