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
        for out, epilogue in (("f32", "PLAIN"), (dtype, "PLAIN"), (dtype, "GATED")):
            name, kinds = f"{dtype}_{out}_{epilogue.lower()}", f"{dtype}, {FLOATS[out]}"
            for tiles in TOKEN_TILES[: 3 if epilogue == "GATED" else 4]:  # 48 KiB of shared memory
                yield Instance(
                    "linear",
                    f"linear_decode_{name}_{tiles}",
                    f"linear_decode<{kinds}, {tiles}, {epilogue}>",
                )
            yield Instance(
                "linear", f"linear_prefill_{name}", f"linear_prefill<{kinds}, {epilogue}>"
            )


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
        yield Instance("embedding", f"embedding_{dtype}", f"embedding<{kind}>")
        yield Instance("embedding", f"embedding_packed_{dtype}", f"embedding_packed<{kind}>")
        yield Instance("rms_norm", f"add_rms_norm_{dtype}", f"add_rms_norm<{kind}>")
        yield Instance("silu_mul", f"silu_mul_{dtype}", f"silu_mul<{kind}>")
    for head_dim in HEAD_DIMS:
        yield Instance("attention_f32", f"attention_f32_{head_dim}", f"attention_f32<{head_dim}>")
    yield Instance("linear_f32", "linear_f32", "linear_f32")
    yield Instance("page_copy", "page_copy", "page_copy")
    for kernel in ("sample", "edit_logits", "copy_rows", "log_softmax"):
        yield Instance("sampling", kernel, kernel)
