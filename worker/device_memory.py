"""What lies on a GPU by purpose, and how much of it keys and values may have.

Nothing is guessed: the largest step runs over a small cache, so that step buffers, graphs and
modules exist, and what is then free is read. Knows sizes; knows no operator.
"""

from __future__ import annotations

from collections.abc import Callable

from worker.backends.cuda import CudaBackend
from worker.backends.cuda_graph import BUCKETS
from worker.batch import PassLimits
from worker.memory import NoRoom
from worker.model_runner import ModelRunner
from worker.warm_up import run_largest_steps

MARGIN = 0.04
"""Part of a device that stays free: graphs of more sizes, and what the driver takes for itself."""


def ledger(backend: CudaBackend, kv_bytes: int) -> dict[str, int]:
    """Return the bytes of the device by purpose, all of it; `context` and `reserve` are measured.

    `context` is what nobody here asked for: the driver, modules, graphs, and other processes.
    """
    gpu = backend.gpu
    taken = {
        "weights": backend.weight_bytes,
        "kv": kv_bytes,
        "step": backend.scratch.num_bytes,
        "graphs": backend.graph_bytes,
    }
    free = gpu.free_bytes
    context = gpu.total_bytes - free - sum(taken.values())
    return taken | {"context": max(0, context), "reserve": free}


def probe_blocks(limits: PassLimits, block_size: int) -> int:
    """Return the size of a cache that is small, and takes the largest step."""
    return max(BUCKETS[-1], -(-limits.max_tokens // block_size))


def kv_bytes_left(
    backend: CudaBackend,
    new_runner: Callable[[int], ModelRunner],
    limits: PassLimits,
    block_size: int,
    block_bytes: int,
) -> int:
    """Return how much keys and values may take beside everything else, in bytes.

    `new_runner` makes a runner with so many blocks; it is gone when this returns. Raises ValueError
    when the device has no room for the largest step, or for a block beside it.
    """
    gpu = backend.gpu
    gpu.trim()  # of the cache of an earlier life, or this runner would be cut out of it
    try:
        runner = new_runner(probe_blocks(limits, block_size))
        run_largest_steps(runner, limits)
        gpu.trim()
        parts = ledger(backend, runner.memory["kv"])
        del runner
        gpu.trim()
    except MemoryError as error:
        raise NoRoom(
            f"device cuda: a step of {limits.max_tokens} tokens does not fit beside "
            f"{backend.weight_bytes} bytes of weights: {error}; lower max_ubatch_tokens"
        ) from error
    left = parts["reserve"] + parts["kv"] - int(gpu.total_bytes * MARGIN) - block_bytes
    growing = 2 * backend.graph_bytes_per_block(block_size)  # passes without a graph need as much
    left = left * block_bytes // (block_bytes + growing)
    if left < block_bytes:
        raise NoRoom(
            f"device cuda: {gpu.name} has {gpu.total_bytes} bytes, {_told(parts)} leave no room "
            "for keys and values: lower max_ubatch_tokens"
        )
    return left


def checked(asked: int | None, left: int, backend: CudaBackend) -> int:
    """Return the memory for keys and values; raise ValueError when `asked` is more than `left`."""
    if asked is not None and asked > left:
        raise NoRoom(
            f"kv_cache_memory is {asked} bytes, {backend.gpu.name} of {backend.gpu.total_bytes} "
            f"has {left} left beside weights, the largest step and a margin: lower kv_cache_memory"
        )
    return left if asked is None else asked


def _told(parts: dict[str, int]) -> str:
    names = ("weights", "step", "graphs", "context")
    return ", ".join(f"{name} {parts[name]}" for name in names)
