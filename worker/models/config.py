"""ModelConfig: the facts of config.json that a forward pass needs, checked one by one.

Knows both spellings (transformers 4: torch_dtype, rope_theta, rope_scaling; transformers 5: dtype,
rope_parameters) and refuses, naming the field, whatever no model here computes. Knows no weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.errors import ModelFolderError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer; `dtype` is the one its weights are stored in."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    dtype: str

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_config(folder: Path, name: str = "config.json") -> ModelConfig:
    """Read and check `folder/name`; raise ModelFolderError that names the file and the field."""
    path = folder / name
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelFolderError(f"{path}: is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelFolderError(f"{path}: expected an object, got {type(raw).__name__}")
    return _Fields(path, raw).config()


class _Fields:
    """Takes fields out of one config.json; every complaint starts with the file's path."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self._path = path
        self._raw = raw

    def config(self) -> ModelConfig:
        self._refuse_unsupported()
        num_heads = self._size("num_attention_heads")
        hidden_size = self._size("hidden_size")
        num_kv_heads = self._size("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise self._error("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}")
        return ModelConfig(
            architecture=self._architecture(),
            vocab_size=self._size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=self._size("intermediate_size"),
            num_layers=self._size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=self._head_dim(hidden_size, num_heads),
            max_position_embeddings=self._size("max_position_embeddings"),
            rms_norm_eps=self._number("rms_norm_eps"),
            rope_theta=self._rope_theta(),
            tie_word_embeddings=bool(self._raw.get("tie_word_embeddings", False)),
            dtype=self._dtype(),
        )

    def _error(self, field: str, value: object, allowed: str) -> ModelFolderError:
        return ModelFolderError(f"{self._path}: {field} is {value!r}, allowed: {allowed}")

    def _size(self, field: str, default: int | None = None) -> int:
        value = self._raw.get(field)
        if value is None:
            value = default
        if value is None:
            raise ModelFolderError(f"{self._path}: field {field} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(field, value, "a positive integer")
        return value

    def _number(self, field: str, raw: dict[str, Any] | None = None) -> float:
        raw = self._raw if raw is None else raw
        value = raw.get(field)
        if value is None:
            raise ModelFolderError(f"{self._path}: field {field} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise self._error(field, value, "a positive number")
        return float(value)

    def _architecture(self) -> str:
        names = self._raw.get("architectures")
        if not isinstance(names, list) or len(names) != 1:
            raise self._error("architectures", names, "a list of one name")
        return str(names[0])

    def _head_dim(self, hidden_size: int, num_heads: int) -> int:
        if self._raw.get("head_dim") is None and hidden_size % num_heads:
            raise self._error("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
        head_dim = self._size("head_dim", hidden_size // num_heads)
        if head_dim % 2:
            raise self._error("head_dim", head_dim, "an even number")
        return head_dim

    def _dtype(self) -> str:
        value = self._raw.get("dtype", self._raw.get("torch_dtype")) or "float32"
        if value not in DTYPES:
            raise self._error("dtype", value, ", ".join(DTYPES))
        return str(value)

    def _rope_theta(self) -> float:
        for field in ("rope_parameters", "rope_scaling"):
            rope = self._raw.get(field)
            if rope is None:
                continue
            if not isinstance(rope, dict):
                raise self._error(field, rope, "an object or null")
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind != "default":
                raise self._error(f"{field}.rope_type", kind, "default")
            if "rope_theta" in rope:
                return self._number("rope_theta", rope)
        return self._number("rope_theta")

    def _refuse_unsupported(self) -> None:
        if self._raw.get("use_sliding_window"):
            raise self._error("use_sliding_window", True, "false")
        if kinds := set(self._raw.get("layer_types") or []) - {"full_attention"}:
            raise self._error("layer_types", sorted(kinds), "full_attention")
        if (activation := self._raw.get("hidden_act", "silu")) != "silu":
            raise self._error("hidden_act", activation, "silu")
        if self._raw.get("quantization_config") is not None:
            raise self._error("quantization_config", "set", "absent")
