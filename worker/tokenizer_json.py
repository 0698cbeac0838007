"""A tokenizer.json as llguidance must read it: forced text is tokenized as it stands.

Where a grammar leaves one way to go on, llguidance tokenizes the text of that way, and refuses the
token when it comes if the text was changed before: normalized, padded, or begun with a blank, which
is for the begin of a prompt.
"""

from __future__ import annotations

from typing import Any

import msgspec

SPELLING = ("Replace", "Prepend")
"""Normalizers that are the vocabulary's way to write blanks."""


def verbatim(tokenizer_json: str) -> str:
    """Return a tokenizer.json that changes nothing of a text before it tokenizes it."""
    parts = msgspec.json.decode(tokenizer_json, type=dict[str, msgspec.Raw])
    changes = {
        "normalizer": _normalizer,
        "pre_tokenizer": _without_prefix,
        "decoder": _decoder,
        "truncation": _nothing,
        "padding": _nothing,
    }
    for name in parts.keys() & changes.keys():
        changed = changes[name](msgspec.json.decode(parts[name]))
        parts[name] = msgspec.Raw(msgspec.json.encode(changed))
    return msgspec.json.encode(parts).decode()


def _nothing(part: Any) -> None:
    return None


def _normalizer(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "Sequence":
        kept = [one for one in map(_normalizer, part["normalizers"]) if one is not None]
        return {"type": "Sequence", "normalizers": kept} if kept else None
    is_pattern = kind == "Replace" and "Regex" in part["pattern"]
    return part if kind in SPELLING and not is_pattern else None


def _without_prefix(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if "pretokenizers" in part:
        return part | {"pretokenizers": [_without_prefix(one) for one in part["pretokenizers"]]}
    return part | {"add_prefix_space": False} if part.get("type") == "ByteLevel" else part


def _decoder(part: Any) -> Any:
    """Metaspace is written as the parts that llguidance knows."""
    if not isinstance(part, dict):
        return part
    if "decoders" in part:
        return part | {"decoders": [one for each in part["decoders"] for one in _steps(each)]}
    steps = _steps(part)
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "decoders": steps}


def _steps(part: Any) -> list[Any]:
    if part.get("type") == "Metaspace":
        blank = {"type": "Replace", "pattern": {"String": part["replacement"]}, "content": " "}
        return [blank, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return [part | {"add_prefix_space": False}] if part.get("type") == "ByteLevel" else [part]
