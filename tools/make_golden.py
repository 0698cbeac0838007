"""Writes tests/golden/: tiny Qwen2 folders with outputs of a second, independent implementation.

That implementation is below: plain float64, one token at a time, loops instead of matrices of
tokens, a growing list of keys instead of a cache. It shares no code with the worker, on purpose.

    python -m tools.make_golden --out tests/golden
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

COMMON: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-06,
    "use_sliding_window": False,
    "vocab_size": 96,
}
FOLDERS: dict[str, dict[str, Any]] = {
    "qwen2-tiny-tied-f32": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "qwen2-tiny-untied-bf16-sharded": {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_theta": 10000, "rope_type": "default"},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
}
PROMPT_LENGTHS = (1, 9, 40, 70)
NUM_GREEDY = 32
MIN_MARGIN = 2e-3
"""Smallest gap of the two best logits at any greedy step: else the seed is not used."""


# ── the second implementation ────────────────────────────────────────────────────────────────


class Reader:
    """Reads one sequence, token by token."""

    def __init__(self, config: dict[str, Any], tensors: Tensors) -> None:
        self._config = config
        self._tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        self._keys: list[list[Array]] = [[] for _ in range(config["num_hidden_layers"])]
        self._values: list[list[Array]] = [[] for _ in range(config["num_hidden_layers"])]

    def read(self, token_id: int) -> Array:
        """Return the logits after one more token."""
        x = self._tensors["model.embed_tokens.weight"][token_id]
        for layer in range(self._config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            x = x + self._attend(layer, self._norm(x, f"{prefix}.input_layernorm"))
            x = x + self._mlp(prefix, self._norm(x, f"{prefix}.post_attention_layernorm"))
        head = "model.embed_tokens" if self._config["tie_word_embeddings"] else "lm_head"
        return self._tensors[f"{head}.weight"] @ self._norm(x, "model.norm")

    def _norm(self, x: Array, name: str) -> Array:
        mean_square = sum(v * v for v in x.tolist()) / len(x)
        scale = 1 / math.sqrt(mean_square + self._config["rms_norm_eps"])
        return x * scale * self._tensors[f"{name}.weight"]

    def _project(self, name: str, x: Array) -> Array:
        return self._tensors[f"{name}.weight"] @ x + self._tensors[f"{name}.bias"]

    def _attend(self, layer: int, x: Array) -> Array:
        name = f"model.layers.{layer}.self_attn"
        heads, kv_heads = (self._config[f"num_{k}_heads"] for k in ("attention", "key_value"))
        size = self._config["hidden_size"] // heads
        position = len(self._keys[layer])
        q = self._turn(self._project(f"{name}.q_proj", x).reshape(heads, size), position)
        k = self._turn(self._project(f"{name}.k_proj", x).reshape(kv_heads, size), position)
        self._keys[layer].append(k)
        self._values[layer].append(self._project(f"{name}.v_proj", x).reshape(kv_heads, size))
        out = [self._one_head(layer, q[h], h * kv_heads // heads) for h in range(heads)]
        return self._tensors[f"{name}.o_proj.weight"] @ np.concatenate(out)

    def _one_head(self, layer: int, q: Array, kv_head: int) -> Array:
        scores = [float(q @ k[kv_head]) / math.sqrt(len(q)) for k in self._keys[layer]]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        pairs = zip(weights, self._values[layer], strict=True)
        mixed: Array = sum((w * v[kv_head] for w, v in pairs), np.zeros(len(q))) / sum(weights)
        return mixed

    def _turn(self, heads: Array, position: int) -> Array:
        rope = self._config.get("rope_parameters", self._config)
        half = heads.shape[1] // 2
        turned = heads.copy()
        for i in range(half):
            angle = position * rope["rope_theta"] ** (-i / half)
            a, b = heads[:, i].copy(), heads[:, i + half].copy()
            turned[:, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[:, i + half] = b * math.cos(angle) + a * math.sin(angle)
        return turned

    def _mlp(self, prefix: str, x: Array) -> Array:
        gate = self._tensors[f"{prefix}.mlp.gate_proj.weight"] @ x
        up = self._tensors[f"{prefix}.mlp.up_proj.weight"] @ x
        return self._tensors[f"{prefix}.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


def tell(config: dict[str, Any], tensors: Tensors, prompt: list[int]) -> dict[str, Any]:
    """Return what the model makes of `prompt`: last logits, greedy ids, smallest margin."""
    reader = Reader(config, tensors)
    logits = [reader.read(token_id) for token_id in prompt][-1]
    story: dict[str, Any] = {"ids": prompt, "last_logits": np.round(logits, 6).tolist()}
    greedy: list[int] = []
    margin = math.inf
    while len(greedy) < NUM_GREEDY:
        second, first = np.sort(logits)[-2:]
        margin = min(margin, float(first - second))
        greedy.append(int(logits.argmax()))
        logits = reader.read(greedy[-1])
    return story | {"greedy_ids": greedy, "min_margin": round(margin, 6)}


# ── weights and files ────────────────────────────────────────────────────────────────────────


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Qwen2 folder."""
    hidden, inner, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{norm}.weight"] = (hidden,)
        for name, size in (("q", hidden), ("k", kv), ("v", kv)):
            found[f"{layer}.self_attn.{name}_proj.weight"] = (size, hidden)
            found[f"{layer}.self_attn.{name}_proj.bias"] = (size,)
        found[f"{layer}.self_attn.o_proj.weight"] = (hidden, hidden)
        found[f"{layer}.mlp.gate_proj.weight"] = (inner, hidden)
        found[f"{layer}.mlp.up_proj.weight"] = (inner, hidden)
        found[f"{layer}.mlp.down_proj.weight"] = (hidden, inner)
    return found


def invent(config: dict[str, Any], seed: int) -> Tensors:
    """Return random weights, representable in the folder's dtype."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in sorted(shapes(config).items()):
        noise = rng.standard_normal(shape)
        scale = 0.3 if "embed" in name else 2 * shape[-1] ** -0.5
        values = (1 + 0.1 * noise if "norm" in name else scale * noise).astype(np.float32)
        if config.get("dtype") == "bfloat16":
            values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        tensors[name] = values
    return tensors


def save(path: Path, tensors: Tensors, dtype: str) -> None:
    """Write one safetensors file; bfloat16 is the upper half of each float32."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in sorted(tensors.items()):
        words = values.astype("<f4").view("<u2").reshape(-1, 2)[:, 1]
        raw = words.tobytes() if dtype == "BF16" else values.astype("<f4").tobytes()
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def save_weights(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """Write one float32 file, or two bfloat16 shards and their index."""
    if config.get("dtype") != "bfloat16":
        save(folder / "model.safetensors", tensors, "F32")
        return
    weight_map: dict[str, str] = {}
    for shard in (1, 2):
        file = f"model-{shard:05d}-of-00002.safetensors"
        mine = {name: tensors[name] for name in sorted(tensors)[shard - 1 :: 2]}
        save(folder / file, mine, "BF16")
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def make(folder: Path, config: dict[str, Any]) -> None:
    """Write a folder with the first seed whose greedy choices are clear."""
    for seed in range(1000):
        tensors = invent(config, seed)
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, config["vocab_size"], n).tolist() for n in PROMPT_LENGTHS]
        stories = [tell(config, tensors, prompt) for prompt in prompts]
        if min(story["min_margin"] for story in stories) >= MIN_MARGIN:
            break
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_weights(folder, config, tensors)
    golden = {"seed": seed, "prompts": stories}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{folder}: seed {seed}, {sum(f.stat().st_size for f in folder.iterdir())} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/golden"))
    out = parser.parse_args().out
    for name, config in FOLDERS.items():
        make(out / name, COMMON | config)


if __name__ == "__main__":
    main()
