"""ModelConfig: the facts of config.json that a forward pass needs, checked one by one.

Knows both spellings (transformers 4: torch_dtype, rope_theta, rope_scaling; transformers 5: dtype,
rope_parameters, layer_types) and refuses, naming the field, whatever no model here computes. Knows
no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.model_folder import Fields, ModelFolderError, read_object
from worker.models.llama import llama
from worker.models.qwen2 import qwen2
from worker.models.qwen3 import qwen3
from worker.models.rope import Rope, read_rope
from worker.models.wiring import Wiring
from worker.quantized.scheme import Scheme, read_scheme

DTYPES = ("float32", "bfloat16", "float16")
ALWAYS_SLIDING = {"MistralForCausalLM": 4096}
"""Without a `use_sliding_window`: in these a `sliding_window` alone is enough, for every layer, and
is so wide where the field is left out; null means none."""
FAMILIES = {"Llama": llama, "Mistral": llama, "Qwen2": qwen2, "Qwen3": qwen3}
"""What stands in `architectures` before ForCausalLM → wiring. A new one is a file and a line."""
WITH_HEAD = {f"{family}Model": f"{family}ForCausalLM" for family in FAMILIES}
"""A base model saved by itself, as embedding models are."""
ADAPTER = "adapter_config.json"
ADAPTER_ALONE = f"holds an adapter alone ({ADAPTER}), as LoRA: merge it with its base model first"
HEAD_DIM = {"Qwen3ForCausalLM": 128}
"""Where the field is left out; in other families a head is its part of the hidden size."""
UNIFORM = ("LlamaForCausalLM", "MistralForCausalLM")
"""All layers are alike, whatever `layer_types` and `use_sliding_window` say in other families."""
FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = ("silu", "swish")
"""Two names of one function."""
MAX_LAYERS, MAX_HEAD_SIZE = 10_000, 16_384
"""A number beyond all sense would fill memory with names, or with frequencies, before the first
tensor is missed."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer; `dtype` is that of its weights, "" if it is not told."""

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
    rope: Rope
    windows: tuple[int, ...]
    """Of each layer: how many positions it sees, its own included; 0 = all."""
    tie_word_embeddings: bool
    wiring: Wiring
    dtype: str
    scheme: Scheme | None = None
    """How the linears are quantised in the folder."""
    has_head: bool = True
    """False: what a folder holds is a base model whose head is not the embedding."""

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_config(folder: Path) -> ModelConfig:
    """Read and check config.json; raise ModelFolderError that names the file and the field."""
    path = folder / "config.json"
    if not path.exists() and (folder / ADAPTER).exists():
        raise ModelFolderError(f"{folder} {ADAPTER_ALONE}")
    fields = read_object(path)
    architecture = _architecture(fields)  # first: others name their fields otherwise
    _refuse_unsupported(fields)
    num_heads = fields.size("num_attention_heads")
    hidden_size = fields.size("hidden_size")
    if (num_layers := fields.size("num_hidden_layers")) > MAX_LAYERS:
        raise fields.error("num_hidden_layers", num_layers, f"at most {MAX_LAYERS}")
    num_kv_heads = fields.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}")
    head_dim = _head_dim(fields, architecture, hidden_size, num_heads)
    rope = read_rope(fields, head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=_max_positions(fields, rope),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        windows=_windows(fields, architecture),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        wiring=_wiring(fields, architecture),
        dtype=_dtype(fields),
        scheme=read_scheme(fields),
    )


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise fields.error("architectures", names, "a list of one name")
    name = WITH_HEAD.get(str(names[0]), str(names[0]))
    if name not in WITH_HEAD.values():
        raise fields.error("architectures", name, ", ".join(WITH_HEAD.values()))
    return name


def _wiring(fields: Fields, architecture: str) -> Wiring:
    family = FAMILIES[architecture.removesuffix("ForCausalLM")]
    return family(fields.flag("attention_bias"), fields.flag("mlp_bias"))


def _head_dim(fields: Fields, architecture: str, hidden_size: int, num_heads: int) -> int:
    left_out = HEAD_DIM.get(architecture)
    if fields.get("head_dim") is None and left_out is None and hidden_size % num_heads:
        raise fields.error("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
    head_dim = fields.size("head_dim", left_out or hidden_size // num_heads)
    if head_dim % 2 or head_dim > MAX_HEAD_SIZE:
        raise fields.error("head_dim", head_dim, f"an even number, at most {MAX_HEAD_SIZE}")
    return head_dim


def _max_positions(fields: Fields, rope: Rope) -> int:
    """Attention by two chunks, as of Qwen2.5-1M, is plain as far as the model was trained."""
    longest = max(fields.size("max_position_embeddings"), rope.max_positions)
    chunks = fields.inside("dual_chunk_attention_config")
    if chunks is None:
        return longest
    return min(longest, chunks.size("original_max_position_embeddings"))


def _dtype(fields: Fields) -> str:
    name = "dtype" if fields.get("dtype") else "torch_dtype"
    value = fields.get(name) or ""
    if value and value not in DTYPES:
        raise fields.error(name, value, ", ".join(DTYPES))
    return str(value)


def _windows(fields: Fields, architecture: str) -> tuple[int, ...]:
    """`layer_types` decides where it stands; else the layers from `max_window_layers` on slide."""
    num_layers = fields.size("num_hidden_layers")
    kinds = fields.get("layer_types")
    if kinds is None or architecture in UNIFORM:
        slides = _slides_from(fields, architecture, num_layers)
        computed = [SLIDING if i >= slides else FULL for i in range(num_layers)]
        if kinds not in (None, computed):
            raise fields.error("layer_types", kinds, f"absent, or {num_layers} of {computed[0]}")
        kinds = computed
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.error("layer_types", kinds, f"a list of {num_layers}")
    if unknown := sorted({str(kind) for kind in kinds} - {FULL, SLIDING}):
        raise fields.error("layer_types", unknown, f"{FULL}, {SLIDING}")
    if SLIDING not in kinds:
        return (0,) * num_layers
    default = ALWAYS_SLIDING.get(architecture)
    if default is None and not fields.flag("use_sliding_window"):
        raise fields.error("layer_types", SLIDING, f"{FULL} without use_sliding_window")
    window = fields.size("sliding_window", default)
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def _slides_from(fields: Fields, architecture: str, num_layers: int) -> int:
    """Return the first layer that slides; `num_layers` when none does."""
    is_null = fields.has("sliding_window") and fields.get("sliding_window") is None
    if architecture in ALWAYS_SLIDING:
        return num_layers if is_null else 0
    asked = fields.flag("use_sliding_window")
    if asked and architecture in UNIFORM:
        raise fields.error("use_sliding_window", True, "false")
    if not asked or is_null:
        return num_layers
    if fields.get("max_window_layers") == 0:
        return 0
    return min(fields.size("max_window_layers"), num_layers)


def _refuse_unsupported(fields: Fields) -> None:
    if (activation := fields.get("hidden_act") or "silu") not in ACTIVATIONS:
        raise fields.error("hidden_act", activation, ", ".join(ACTIVATIONS))
    if fields.flag("use_mrope"):
        raise fields.error("use_mrope", True, "false")
    if not fields.flag("is_causal", True):  # embedding models whose tokens see those behind them
        raise fields.error("is_causal", False, "true")
    for name in EXPERTS:
        if fields.get(name):
            raise fields.error(name, fields.get(name), "absent")
