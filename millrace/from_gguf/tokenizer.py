"""tokenizer.json and tokenizer_config.json of a GGUF file's vocabulary.

Two kinds: `gpt2`, byte-level BPE with merges, whose texts are first cut by the pattern that
`tokenizer.ggml.pre` names; and `llama`, SentencePiece's BPE, whose merges follow from the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.model_folder import Fields

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
PATTERNS = {
    "qwen2": QWEN2, "deepseek-r1-qwen": QWEN2,
    "llama-bpe": LLAMA3, "llama3": LLAMA3, "llama-v3": LLAMA3,
}  # fmt: skip
"""`tokenizer.ggml.pre` → what cuts a text into words."""
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Of `tokenizer.ggml.token_type`; 1 is a plain token, 6 a byte."""
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
SPACE = "\u2581"
ENDS = {
    "</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
}  # fmt: skip
"""Control tokens that end an answer, whatever else the file names: it names one."""
NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""Before `_token_id` in a GGUF file → before `_token` in tokenizer_config.json."""


def tokenizer(fields: Fields) -> dict[str, Any]:
    """Return tokenizer.json; raise ModelFolderError that names the key."""
    kind = fields.text("tokenizer.ggml.model")
    if kind not in KINDS:
        raise fields.error("tokenizer.ggml.model", kind, ", ".join(KINDS))
    tokens, types = tokens_of(fields)
    added = [
        {
            "id": i, "content": tokens[i], "special": types[i] != USER_DEFINED,
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        }
        for i in range(len(tokens))
        if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)
    ]  # fmt: skip
    built = {"version": "1.0", "added_tokens": added, **KINDS[kind](fields, tokens, types)}
    if any(ends := adds_ends(fields)):
        built["post_processor"] = _with_ends(fields, tokens, *ends)
    return built


def tokenizer_config(fields: Fields, templates: dict[str, str]) -> dict[str, Any]:
    """Return tokenizer_config.json: the named tokens and the chat templates."""
    tokens, _ = tokens_of(fields)
    named = {
        f"{name}_token": tokens[token_id]
        for key, name in NAMED.items()
        if (token_id := _token_id(fields, key, len(tokens))) is not None
    }
    bos, eos = adds_ends(fields)
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bos,
        "add_eos_token": eos,
        **named,
        **(
            {"chat_template": listed if len(listed) > 1 else listed[0]["template"]}
            if listed
            else {}
        ),
    }


def eos_token_ids(fields: Fields) -> list[int]:
    """Return the tokens that end an answer: those the file names, and those known by their text."""
    tokens, types = tokens_of(fields)
    named = [_token_id(fields, key, len(tokens)) for key in ("eos", "eot", "eom")]
    known = [i for i, text in enumerate(tokens) if types[i] == CONTROL and text in ENDS]
    return sorted({i for i in (*named, *known) if i is not None})


def tokens_of(fields: Fields) -> tuple[list[str], list[int]]:
    """Return the text and the type of every token."""
    tokens = _list(fields, "tokenizer.ggml.tokens", str)
    types = _list(fields, "tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise fields.error("tokenizer.ggml.token_type", f"{len(types)} long", f"{len(tokens)}")
    return tokens, types


def adds_ends(fields: Fields) -> tuple[bool, bool]:
    """Return whether a text gets the tokens of its begin and end, as llama.cpp takes files."""
    begins = fields.text("tokenizer.ggml.model") == "llama" or _pattern(fields) == LLAMA3
    return (
        fields.flag("tokenizer.ggml.add_bos_token", begins),
        fields.flag("tokenizer.ggml.add_eos_token"),
    )


def _byte_level(fields: Fields, tokens: list[str], types: list[int]) -> dict[str, Any]:
    pattern = _pattern(fields)
    if not pattern:
        name = "tokenizer.ggml.pre"
        raise fields.error(name, fields.get(name), ", ".join(PATTERNS))
    plain = {
        text: i for i, text in enumerate(tokens) if types[i] not in (CONTROL, USER_DEFINED, UNUSED)
    }
    merges = [one.split(" ") for one in _list(fields, "tokenizer.ggml.merges", str)]
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "normalizer": {"type": "NFC"} if pattern == QWEN2 else None,
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}],
        },
        "post_processor": {**BYTE_LEVEL, "use_regex": False},
        "decoder": {**BYTE_LEVEL, "use_regex": False},
        "model": {
            "type": "BPE", "vocab": plain, "merges": merges, "ignore_merges": pattern == LLAMA3,
        },
    }  # fmt: skip


def _sentence_piece(fields: Fields, tokens: list[str], types: list[int]) -> dict[str, Any]:
    vocabulary = {text: i for i, text in enumerate(tokens) if types[i] != UNUSED}
    begins = fields.flag("tokenizer.ggml.add_space_prefix", True)
    to_space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    from_space = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if begins else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []
    decoders = [from_space, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, to_space]},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": _merges(fields, tokens, types),
            "unk_token": next((tokens[i] for i in range(len(tokens)) if types[i] == UNKNOWN), None),
            "fuse_unk": True, "byte_fallback": True,
        },
    }  # fmt: skip


KINDS: dict[str, Callable[[Fields, list[str], list[int]], dict[str, Any]]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}


def _merges(fields: Fields, tokens: list[str], types: list[int]) -> list[list[str]]:
    """Return the pairs that join, the best score first.

    SentencePiece joins the two neighbours whose whole has the highest score. BPE with merges does
    the same when every way to make a token of two others is ranked by that token's score.
    """
    scores = _list(fields, "tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise fields.error("tokenizer.ggml.scores", f"{len(scores)} long", f"{len(tokens)}")
    plain = {text: i for i, text in enumerate(tokens) if types[i] not in (CONTROL, UNKNOWN, UNUSED)}
    found = [
        (-scores[i], plain[text[:cut]], plain[text[cut:]])
        for text, i in plain.items()
        for cut in range(1, len(text))
        if text[:cut] in plain and text[cut:] in plain
    ]
    return [[tokens[left], tokens[right]] for _, left, right in sorted(found)]


def _with_ends(fields: Fields, tokens: list[str], bos: bool, eos: bool) -> dict[str, Any]:
    """Return a post-processor that puts the tokens of the begin and the end around a text."""
    around: dict[str, list[int]] = {"bos": [], "eos": []}
    for key, is_added in (("bos", bos), ("eos", eos)):
        if is_added:
            token_id = _token_id(fields, key, len(tokens))
            if token_id is None:
                raise fields.missing(f"tokenizer.ggml.{key}_token_id")
            around[key] = [token_id]
    begin, end = (
        [{"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in ids] for ids in around.values()
    )
    return {
        "type": "TemplateProcessing",
        "single": [*begin, {"Sequence": {"id": "A", "type_id": 0}}, *end],
        "pair": [],
        "special_tokens": {
            tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]}
            for i in (*around["bos"], *around["eos"])
        },
    }


def _pattern(fields: Fields) -> str:
    return PATTERNS.get(fields.text("tokenizer.ggml.pre"), "")


def _token_id(fields: Fields, key: str, num_tokens: int) -> int | None:
    name = f"tokenizer.ggml.{key}_token_id"
    token_id = fields.get(name)
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
        raise fields.error(name, token_id, f"an id below {num_tokens}")
    return token_id


def _list(fields: Fields, name: str, kind: type) -> list[Any]:
    value = fields.get(name)
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise fields.error(name, type(value).__name__, f"a list of {kind.__name__}")
    return value
