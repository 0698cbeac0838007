"""From a model folder to a ModelRunner: the one place that joins config, weights and backend.

Used by the server and, in process, by the offline face. Takes plain values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from protos import worker as wire
from worker.backends.choice import CpuChoice, choose_backend
from worker.errors import ModelFolderError
from worker.grammar import Grammars
from worker.hooks import Callback, Hook, register_hook
from worker.kv_cache import BLOCK_SIZES, KvCache, block_bytes
from worker.memory import default_kv_cache_bytes
from worker.model_runner import ModelRunner
from worker.models import ARCHITECTURES
from worker.models.config import ModelConfig, read_config
from worker.models.decoder import Decoder, may_ignore, shapes
from worker.models.layers import Wiring
from worker.ubatches import PassLimits
from worker.weights import FolderWeights

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 30
MAX_LOGITS = 512
"""Rows of logits that one pass computes at most; 300 MB with the largest vocabularies."""
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on their device. Outlives the schedulers that use it, one runner each."""

    config: ModelConfig
    model: Decoder
    backend: CpuChoice
    model_hash: str
    weight_bytes: int
    layout: str
    max_ubatch_tokens: int
    """0 = a step is computed in one pass."""
    grammars: Grammars

    @property
    def block_size(self) -> int:
        return BLOCK_SIZES[self.layout]

    def facts(self, kv_cache_bytes: int) -> wire.ModelFacts:
        """Return what the scheduler must know, given this much memory for keys and values."""
        return wire.ModelFacts(
            vocab_size=self.config.vocab_size,
            max_position_embeddings=self.config.max_position_embeddings,
            fingerprint=f"{self.backend.fingerprint} tp=1 millrace={version('millrace')}",
            model_hash=self.model_hash,
            block_size=self.block_size,
            max_blocks=kv_cache_bytes // block_bytes(self.config, self.block_size),
            layout=self.layout,
        )

    def register_hook(self, pattern: str, callback: Callback) -> Hook:
        """Show every intermediate whose name matches, of every runner, to `callback`."""
        return register_hook(self.model, pattern, callback)

    def runner(self, num_blocks: int) -> ModelRunner:
        """Allocate exactly `num_blocks` and return a fresh runner."""
        cache = KvCache(self.config, num_blocks, self.block_size)
        log.info(
            "kv cache",
            extra={
                "num_blocks": num_blocks,
                "num_tokens": num_blocks * self.block_size,
                "kv_bytes": cache.num_bytes,
                "weight_bytes": self.weight_bytes,
            },
        )
        limits = PassLimits(self.max_ubatch_tokens or NO_LIMIT, MAX_LOGITS)
        size = self.config.vocab_size
        return ModelRunner(self.model, self.backend, cache, size, limits, self.grammars)


def load_model(
    folder: Path,
    device: str = "cpu",
    dtype: str = "auto",
    num_threads: int = 0,
    kv_layout: str = "block",
    max_ubatch_tokens: int = 0,
    kernel_level: str = "auto",
) -> LoadedModel:
    """Read, check and pack a model folder; raise ModelFolderError or ValueError."""
    if device != "cpu":
        raise ValueError(f"device is {device!r}, allowed: cpu")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, allowed: {', '.join(DTYPES)}")
    if kv_layout not in BLOCK_SIZES:
        raise ValueError(f"kv_layout is {kv_layout!r}, allowed: {', '.join(BLOCK_SIZES)}")
    config = read_config(folder)
    wiring = _wiring(folder, config)
    wanted = config.dtype if dtype == "auto" else dtype
    weights = _open(folder, config)
    backend = choose_backend(kernel_level, wanted, num_threads)
    model = Decoder(config, wiring, weights, backend)
    return LoadedModel(
        config, model, backend, weights.fingerprint(), weights.num_bytes, kv_layout,
        max_ubatch_tokens, Grammars(folder / "tokenizer.json", config.vocab_size),
    )  # fmt: skip


def fingerprint_folder(folder: Path) -> str:
    """Check the whole folder without loading it and return its hash; raise ModelFolderError."""
    return _open(folder, read_config(folder)).fingerprint()


def _open(folder: Path, config: ModelConfig) -> FolderWeights:
    return FolderWeights(folder, shapes(config, _wiring(folder, config)), may_ignore(config))


def _wiring(folder: Path, config: ModelConfig) -> Wiring:
    family = ARCHITECTURES.get(config.architecture)
    if family is None:
        raise ModelFolderError(
            f"{folder / 'config.json'}: architectures is {config.architecture!r}, "
            f"allowed: {', '.join(ARCHITECTURES)}"
        )
    return family(config)


def build_runner(
    model_folder: Path | str,
    device: str = "cpu",
    dtype: str = "auto",
    kv_cache_memory_bytes: int | None = None,
    num_blocks: int | None = None,
    num_threads: int = 0,
) -> tuple[ModelRunner, wire.ModelFacts]:
    """Return a runner in this process and its facts; `num_blocks` wins over the memory budget."""
    loaded = load_model(Path(model_folder), device, dtype, num_threads)
    facts = loaded.facts(kv_cache_memory_bytes or default_kv_cache_bytes())
    return loaded.runner(facts.max_blocks if num_blocks is None else num_blocks), facts
