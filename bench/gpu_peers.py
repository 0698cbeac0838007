"""transformers on the same GPU and the same shapes: static cache, compiled graphs, own sampling.

The time of a token is that of many less that of few, from one `generate` each, so that prompts and
compiling fall out. Weights are random. Says in one line when torch or transformers is not here.

    python -m bench.gpu_peers --shape qwen2.5-1.5b --batch 1 64 --json
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bench.gpu import SHAPES

NEEDED = ("torch", "transformers")
FEW = 8


def missing() -> str:
    """Return why nothing can be measured, or ""."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    return f"not compared with transformers: {', '.join(absent)} not installed" if absent else ""


class Peer:
    """A random model of a shape, in bfloat16."""

    def __init__(self, shape_name: str, device: str) -> None:
        self._torch: Any = import_module("torch")
        self._library: Any = import_module("transformers")
        self._device = device
        shape = SHAPES[shape_name]
        config = self._library.Qwen2Config(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            max_position_embeddings=8192,
            tie_word_embeddings=shape.is_tied,
        )
        self._vocab_size = shape.vocab_size
        self._torch.set_grad_enabled(False)
        self._torch.set_default_dtype(self._torch.bfloat16)
        with self._torch.device(device):
            self._model = self._library.Qwen2ForCausalLM(config).eval()
        self._model.generation_config.eos_token_id = None

    @property
    def name(self) -> str:
        return f"transformers {self._library.__version__}, torch {self._torch.__version__}"

    def prompts(self, batch: int, num_tokens: int) -> Any:
        return self._torch.randint(self._vocab_size, (batch, num_tokens), device=self._device)

    def cache(self, num_tokens: int) -> Any:
        return self._library.StaticCache(self._model.config, max_cache_len=num_tokens)

    def generate(self, prompts: Any, num_new: int, cache: Any) -> float:
        """Return the seconds of `num_new` tokens behind each prompt, each drawn."""
        cache.reset()
        self._wait()
        begin = time.perf_counter()
        self._model.generate(
            prompts, past_key_values=cache, max_new_tokens=num_new, min_new_tokens=num_new,
            do_sample=True, top_k=0, attention_mask=self._torch.ones_like(prompts), pad_token_id=0,
        )  # fmt: skip
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()


def decode_row(peer: Peer, batch: int, context: int, repeat: int) -> dict[str, Any]:
    prompts, most = peer.prompts(batch, context), FEW + repeat
    cache = peer.cache(context + most)
    for _ in range(2):  # compiles, then records graphs
        peer.generate(prompts, FEW, cache)
    few = min(peer.generate(prompts, FEW, cache) for _ in range(2))
    seconds = (min(peer.generate(prompts, most, cache) for _ in range(2)) - few) / repeat
    return {
        "kind": "peer decode", "batch": batch, "context": context, "ms": seconds * 1e3,
        "tokens_per_s": batch / seconds,
    }  # fmt: skip


def prefill_row(peer: Peer, num_tokens: int) -> dict[str, Any]:
    prompts, cache = peer.prompts(1, num_tokens), peer.cache(num_tokens + 1)
    seconds = min(peer.generate(prompts, 1, cache) for _ in range(4))
    return {
        "kind": "peer prefill", "tokens": num_tokens, "ms": seconds * 1e3,
        "tokens_per_s": num_tokens / seconds,
    }  # fmt: skip


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per batch size, and one for the prefill."""
    peer = Peer(args.shape, args.device)
    rows = [decode_row(peer, batch, args.context, args.repeat) for batch in args.batch]
    facts = {"shape": args.shape, "engine": peer.name}
    return [facts | row for row in [*rows, prefill_row(peer, args.prefill)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=640)
    parser.add_argument("--prefill", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if why := missing():
        print(json.dumps({"kind": "peer", "note": why}) if args.json else why)
        return
    for row in measure(args):
        print(json.dumps(row) if args.json else row)


if __name__ == "__main__":
    main()
