"""From a model folder to a ModelRunner: the one place that joins config, weights and backend.

Used by the server and, in process, by the offline face. Takes plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import NamedTuple

from common.model_folder import ModelFolderError
from protos import worker as wire
from worker import device_memory
from worker.arena import Arena, Piece, num_bytes
from worker.backends.choice import CpuChoice, choose_backend, choose_kv_dtype
from worker.backends.cpu import MAX_HEAD_DIM, CpuBackend
from worker.backends.cuda import CudaBackend
from worker.backends.cuda_cache import CudaKvCache
from worker.backends.cuda_open import open_cuda
from worker.backends.gpu import Gpu
from worker.batch import SHORT_RUN, PassLimits
from worker.errands import BLOCKS_A_TURN
from worker.errors import NotFinite
from worker.gather import Inputs, input_pieces
from worker.grammar import Grammars
from worker.hooks import Callback, Hook, register_hook
from worker.host_tier import HostTier, host_piece
from worker.kernels.checks import Bytes
from worker.kernels.library import default_cache_dir
from worker.kv_cache import BLOCK_SIZES, KvCache, block_bytes, kv_pieces
from worker.memory import DeviceMemory, NoRoom, free_bytes, host_memory, kv_cache_bytes
from worker.model_runner import ModelRunner
from worker.models.config import DTYPES, ModelConfig, read_config
from worker.models.decoder import EMBEDDING, HEAD, Decoder, may_ignore, shapes, twins
from worker.packed_cache import MIN_BYTES, PackedCache, cache_path
from worker.safetensors import Stamp
from worker.weights import FolderWeights, is_bare, stored_dtype

MAX_UBATCH_TOKENS = 2048
MAX_ROWS = 512
"""Rows of a pass; it takes room for their block tables."""
MAX_THREADS = 1024
MAX_LOGITS = 512
"""Positions of a pass that want logits: 300 MB with the largest vocabularies."""
MAX_GUESSES = 64
"""Positions behind the model's last that a step with guesses may touch."""
Choice = CpuChoice | CudaBackend
DEVICES = ("cpu", "cuda")


class _Stores(NamedTuple):
    """What a runner keeps: inputs, blocks, and copies of evicted ones on the host."""

    arena: Arena
    cache: KvCache | CudaKvCache
    tier: HostTier | None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights on their device. Outlives the schedulers that use it, one runner each."""

    config: ModelConfig
    model: Decoder
    backend: Choice
    model_hash: str
    layout: str
    kv_dtype: str
    max_ubatch_tokens: int
    grammars: Grammars
    host_kv_bytes: int = 0
    stamps: tuple[Stamp, ...] = ()
    """Of the files that steps read: tokens are looked up where they lie."""

    @property
    def host_blocks(self) -> int:
        """Evicted blocks that host memory holds; only whole pages can be found again."""
        return self.host_kv_bytes // self._block_bytes if self.layout == "block" else 0

    @property
    def load_seconds(self) -> dict[str, float]:
        """What loading went for, where that is known; reading and packing run beside sending."""
        return dict(self.backend.loading.seconds) if isinstance(self.backend, CudaBackend) else {}

    @property
    def device(self) -> DeviceMemory:
        """What computes, and how full it is."""
        if isinstance(self.backend, CudaBackend):
            gpu = self.backend.gpu
            return DeviceMemory(gpu.name, gpu.driver, lambda: (gpu.free_bytes, gpu.total_bytes))
        return host_memory()

    @property
    def block_size(self) -> int:
        return BLOCK_SIZES[self.layout]

    @property
    def _limits(self) -> PassLimits:
        return PassLimits(self.max_ubatch_tokens, MAX_ROWS, MAX_LOGITS)

    @property
    def _block_bytes(self) -> int:
        return block_bytes(self.config, self.block_size, self.kv_dtype)

    def kv_cache_bytes(self, asked: int | None) -> int:
        """Return the memory for keys and values: what is asked, else a share of what is free.

        What the largest step works in is no part of it. On a GPU that step runs to see what is
        left beside weights and itself. Raises ValueError when there is less than is asked.
        """
        if isinstance(self.backend, CudaBackend):
            alone = replace(self, host_kv_bytes=0)
            left = device_memory.kv_bytes_left(
                self.backend, alone.runner, self._limits, self.block_size, self._block_bytes
            )
            return device_memory.checked(asked, left, self.backend)
        free = free_bytes()
        if free is None:
            return kv_cache_bytes(asked, free, self.host_kv_bytes)
        most_blocks = (free if asked is None else asked) // self._block_bytes
        positions, step = self._num_positions(most_blocks), self._workspace_bytes(self._limits)
        work = num_bytes(input_pieces(self._limits, positions, self.block_size, step))
        if work > free:
            raise NoRoom(
                f"steps of {self.max_ubatch_tokens} tokens work in {work} bytes, host, control "
                f"group and ulimit have {free} free: lower the worker's max_ubatch_tokens"
            )
        return kv_cache_bytes(asked, free - work, self.host_kv_bytes)

    def facts(self, kv_cache_bytes: int) -> wire.ModelFacts:
        """Return what the scheduler must know, given this much memory for keys and values.

        Raises ValueError when no sequence fits.
        """
        one = self._block_bytes
        if kv_cache_bytes < one:
            raise ValueError(
                f"kv_cache_memory is {kv_cache_bytes} bytes and {self.block_size} tokens take "
                f"{one}: no sequence fits; raise kv_cache_memory"
            )
        numerics = f"{self.backend.fingerprint} kv={self.kv_dtype}"
        return wire.ModelFacts(
            vocab_size=self.config.vocab_size,
            max_position_embeddings=self.config.max_position_embeddings,
            fingerprint=f"{numerics} tp=1 millrace={version('millrace')}",
            model_hash=self.model_hash,
            block_size=self.block_size,
            max_blocks=kv_cache_bytes // one,
            layout=self.layout,
            host_blocks=self.host_blocks,
            has_head=self.config.has_head,
        )

    def register_hook(self, pattern: str, callback: Callback) -> Hook:
        """Show every intermediate whose name matches, of every runner, to `callback`."""
        return register_hook(self.model, pattern, callback)

    def written_file(self) -> Path | None:
        """Return a file that steps read and that was written to since it was loaded."""
        return next((stamp.path for stamp in self.stamps if stamp.was_written()), None)

    def _workspace_bytes(self, limits: PassLimits) -> int:
        """Return what the compiled kernels work in: known from a forward over a cache of a page."""
        if not isinstance(self.backend, CpuBackend):
            return 0
        pieces = kv_pieces(self.config, 1, self.block_size, self.kv_dtype)
        page = KvCache(self.config, 1, self.block_size, Arena(num_bytes(pieces)), self.kv_dtype)
        return self.backend.workspace_bytes(self.model, page.layers, limits)

    def _num_positions(self, num_blocks: int) -> int:
        longest = self.config.max_position_embeddings + MAX_GUESSES
        return min(longest, num_blocks * self.block_size)

    def runner(self, num_blocks: int) -> ModelRunner:
        """Allocate exactly `num_blocks`, and all else a runner writes to; return a fresh one."""
        size, limits = self.block_size, self._limits
        if isinstance(self.backend, CudaBackend):
            most = max(num_blocks * size, 2 * SHORT_RUN * limits.max_tokens)
            limits = limits._replace(max_keys=most)
        num_positions, work = self._num_positions(num_blocks), self._workspace_bytes(limits)
        inner = input_pieces(limits, num_positions, size, work)
        stores = self._stores(num_blocks, num_bytes(inner))
        inputs = Inputs(limits, num_positions, size, stores.arena, work)
        return ModelRunner(
            self.model,
            self.backend,
            stores.cache,
            inputs,
            self.config.vocab_size,
            self._ledger(stores),
            self.grammars,
            stores.tier,
        )

    def _stores(self, num_blocks: int, input_bytes: int) -> _Stores:
        """Allocate blocks, the host's memory behind them, and an arena for `input_bytes` more."""
        size, host = self.block_size, host_piece(self.host_blocks, self._block_bytes)
        cache: KvCache | CudaKvCache
        if isinstance(self.backend, CudaBackend):
            arena = Arena(input_bytes)
            staged = BLOCKS_A_TURN if self.host_blocks else 0
            gpu, dtype = self.backend.gpu, self.backend.dtype
            cache = CudaKvCache(gpu, self.config, num_blocks, size, dtype, staged)
            memory = self._pinned(gpu, host) if staged else None
        else:
            kv = kv_pieces(self.config, num_blocks, size, self.kv_dtype)
            arena = Arena(num_bytes(kv) + input_bytes + num_bytes([host]))
            cache = KvCache(self.config, num_blocks, size, arena, self.kv_dtype)
            memory = arena.take("host", host) if self.host_blocks else None
        return _Stores(arena, cache, None if memory is None else HostTier(cache, memory))

    @staticmethod
    def _pinned(gpu: Gpu, piece: Piece) -> Bytes:
        try:
            return gpu.pinned(prod(piece.shape)).reshape(piece.shape)
        except MemoryError as error:
            raise NoRoom(f"host_kv_memory: {error}; lower host_kv_memory") from error

    def _ledger(self, stores: _Stores) -> Callable[[], dict[str, int]]:
        """Return what tells a runner's bytes by purpose; on a GPU they are read anew each time."""
        backend, taken = self.backend, dict(stores.arena.bytes_by_purpose)
        if isinstance(backend, CudaBackend):
            assert isinstance(stores.cache, CudaKvCache)
            kv_bytes = stores.cache.num_bytes
            if stores.tier is not None:
                taken["host"] = stores.tier.total_bytes
            return lambda: device_memory.ledger(backend, kv_bytes) | taken
        reserve = max(0, (free_bytes() or 0) - stores.arena.num_bytes)
        return lambda: {"weights": backend.weight_bytes, **taken, "reserve": reserve}


def load_model(
    folder: Path,
    device: str = "cpu",
    dtype: str = "auto",
    num_threads: int = 0,
    kv_layout: str = "block",
    max_ubatch_tokens: int = MAX_UBATCH_TOKENS,
    kernel_level: str = "auto",
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
    gpu: Gpu | None = None,
    host_kv_bytes: int = 0,
) -> LoadedModel:
    """Read, check and pack a model folder; raise ModelFolderError or ValueError.

    `gpu` is the device of device "cuda"; without it the first one of this machine.
    """
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}, allowed: {', '.join(DEVICES)}")
    if dtype not in ("auto", *DTYPES):
        raise ValueError(f"dtype is {dtype!r}, allowed: auto, {', '.join(DTYPES)}")
    if not 0 <= num_threads <= MAX_THREADS:
        raise ValueError(f"threads is {num_threads}, allowed: 0 (one a core) to {MAX_THREADS}")
    if kv_layout not in BLOCK_SIZES:
        raise ValueError(f"kv_layout is {kv_layout!r}, allowed: {', '.join(BLOCK_SIZES)}")
    config = _config(folder)
    wanted = config.dtype if dtype == "auto" else dtype
    backend: Choice
    if device == "cuda":
        backend = open_cuda(config, wanted, quantization, kv_cache_dtype, gpu)
        kv_dtype = wanted
    else:
        backend = choose_backend(kernel_level, wanted, quantization, num_threads)
        kv_dtype = choose_kv_dtype(kv_cache_dtype, wanted, backend)
        _check_heads(folder, config, backend)
    weights = _open(folder, config)
    try:
        with _kept_packed(folder, weights, backend):
            model = Decoder(config, weights, backend)
            if isinstance(backend, CudaBackend):
                backend.loading.finish()
    except MemoryError as error:
        raise NoRoom(f"{folder}: the weights do not fit: {error}") from error
    except NotFinite as error:
        place = weights.find_not_finite()
        raise ModelFolderError(f"{place} holds values that are not finite numbers") from error
    return LoadedModel(
        config,
        model,
        backend,
        weights.fingerprint(),
        kv_layout,
        kv_dtype,
        max_ubatch_tokens,
        Grammars(folder / "tokenizer.json", config.vocab_size),
        host_kv_bytes,
        weights.stamps if isinstance(backend, CpuChoice) else (),  # a GPU has copies of all
    )


def _check_heads(folder: Path, config: ModelConfig, backend: CpuChoice) -> None:
    if isinstance(backend, CpuBackend) and config.head_dim > MAX_HEAD_DIM:
        raise ModelFolderError(
            f"{folder / 'config.json'}: head_dim is {config.head_dim}, allowed: at most "
            f"{MAX_HEAD_DIM}, or any with kernel_level reference"
        )


def describe_folder(folder: Path) -> str:
    """Check the whole folder without loading it and say what it holds; raise ModelFolderError."""
    config = _config(folder)
    _open(folder, config)
    size = sum(prod(shape) for shape in shapes(config).values()) / 1e6
    sliding = sum(window > 0 for window in config.windows)
    windows = f", {sliding} of {config.num_layers} layers slide" if sliding else ""
    wide = f", heads of {config.head_dim} need kernel_level reference"
    heads = wide if config.head_dim > MAX_HEAD_DIM else ""
    use = "" if config.has_head else ", no lm_head: embeddings only"
    stored = f", linears quantised by {config.scheme.method}" if config.scheme else ""
    told = f"{config.dtype}{stored}{windows}{heads}{use}"
    return f"{config.architecture}, {size:.1f} M parameters, {told}"


@contextmanager
def _kept_packed(folder: Path, weights: FolderWeights, backend: Choice) -> Iterator[None]:
    """While a model is loaded, take its packed weights out of a file, and keep them in one."""
    try:
        place = default_cache_dir()
    except OSError:
        place = None
    too_small = weights.num_bytes < MIN_BYTES
    if not isinstance(backend, CpuBackend) or place is None or too_small:
        yield
        return
    path = cache_path(place, weights.fingerprint(), backend.weight_layout, folder)
    cache = backend.cache = PackedCache(path, backend.num_threads)
    try:
        yield
        cache.close()
    finally:
        backend.cache = None
        cache.abandon()


def fingerprint_folder(folder: Path) -> str:
    """Check the whole folder without loading it and return its hash; raise ModelFolderError."""
    return _open(folder, _config(folder)).fingerprint()


def _config(folder: Path) -> ModelConfig:
    """Read config.json; an untied model without a head embeds, its table stands in for the head."""
    config = read_config(folder)
    if not config.dtype:
        config = replace(config, dtype=stored_dtype(folder, EMBEDDING, HEAD))
    if config.tie_word_embeddings or not is_bare(folder):
        return config
    return replace(config, tie_word_embeddings=True, has_head=False)


def _open(folder: Path, config: ModelConfig) -> FolderWeights:
    wanted, ignored = shapes(config), may_ignore(config)
    weights = FolderWeights(folder, wanted, ignored, twins(config), config.scheme)
    if config.tie_word_embeddings and weights.differ(HEAD, EMBEDDING):
        # Some would compute with the one, some with the other.
        raise ModelFolderError(
            f"{folder}: {HEAD} differs from {EMBEDDING}, config.json: tie_word_embeddings is True"
        )
    return weights
