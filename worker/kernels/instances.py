"""Which CUDA kernels exist: every instantiation of every `.cu` file, by a plain symbol.

One table for all who need it: the compiler (name expressions), the emulator of the tests (exports)
and the budget of registers and shared memory. Knows no CUDA and no CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FLOATS = {"f32": "float", "bf16": "bf16", "f16": "f16"}
HALVES = ("bf16", "f16")
TOKEN_TILES = (1, 2, 4, 8)
"""8 tokens each: the widths of `linear_decode`; the gated form stops at 4."""


HEAD_DIMS = (16, 32, 64, 80, 96, 128)


class Instance(NamedTuple):
    """`symbol` is what the launcher asks for, `expression` what the compiler is given."""

    stem: str
    symbol: str
    expression: str


def instances() -> list[Instance]:
    """Return all kernels, file by file."""
    return [*_linears(), *_attention(), *_rope(), *_small()]


def stems() -> list[str]:
    """Return the `.cu` files, without suffix."""
    return sorted({instance.stem for instance in instances()})


def _linears() -> Iterator[Instance]:
    for dtype in HALVES:
        for stem, weights in (("linear", dtype), ("linear_int8", "int8_t")):
            for out, epilogue in (("f32", "PLAIN"), (dtype, "PLAIN"), (dtype, "GATED")):
                name = f"{dtype}_{out}_{epilogue.lower()}"
                kinds = f"{dtype}, {weights}, {FLOATS[out]}"
                widths = TOKEN_TILES[: 3 if epilogue == "GATED" else 4]  # 48 KiB of shared memory
                for tiles in widths:
                    symbol = f"{stem}_decode_{name}_{tiles}"
                    yield Instance(stem, symbol, f"linear_decode<{kinds}, {tiles}, {epilogue}>")
                symbol = f"{stem}_prefill_{name}"
                yield Instance(stem, symbol, f"linear_prefill<{kinds}, {epilogue}>")


def _attention() -> Iterator[Instance]:
    for dtype in HALVES:
        for head_dim in HEAD_DIMS:
            for kernel in ("decode", "merge", "prefill"):
                symbol = f"attention_{kernel}_{dtype}_{head_dim}"
                yield Instance(
                    "paged_attention", symbol, f"attention_{kernel}<{dtype}, {head_dim}>"
                )


def _rope() -> Iterator[Instance]:
    yield Instance("rope", "rope_table", "rope_table")
    for dtype, kind in FLOATS.items():
        for head_dim in HEAD_DIMS:
            for kernel in ("rope", "rope_shift"):
                symbol = f"{kernel}_{dtype}_{head_dim}"
                yield Instance("rope", symbol, f"{kernel}<{kind}, {head_dim}>")


def _small() -> Iterator[Instance]:
    for dtype, kind in FLOATS.items():
        yield Instance("rms_norm", f"add_rms_norm_{dtype}", f"add_rms_norm<{kind}>")
        yield Instance("silu_mul", f"silu_mul_{dtype}", f"silu_mul<{kind}>")
    for head_dim in HEAD_DIMS:
        yield Instance("attention_f32", f"attention_f32_{head_dim}", f"attention_f32<{head_dim}>")
    for name, kind in (("f32", "float"), ("int8", "int8_t")):
        yield Instance("embedding", f"embedding_{name}", f"embedding<{kind}>")
        symbol = "linear_f32" if name == "f32" else "linear_f32_int8"
        yield Instance("linear_f32", symbol, f"linear_f32<{kind}>")
    for name, kind in (("bf16", "bf16"), ("f16", "f16"), ("int8", "int8_t")):
        yield Instance("embedding", f"embedding_packed_{name}", f"embedding_packed<{kind}>")
    for kernel in ("page_copy", "page_gather", "page_scatter"):
        yield Instance("page_copy", kernel, kernel)
    for kernel in ("matrix_rate_mma", "matrix_rate_wgmma"):
        yield Instance("ceilings", kernel, kernel)
    for kernel in ("sample", "edit_logits", "restore_logits", "log_softmax"):
        yield Instance("sampling", kernel, kernel)
