"""QuantizedWeight: a linear of a checkpoint that is quantised, as an array that is made when read.

Knows which tensors of a folder belong to one. What is kept packed from an earlier start never asks
for the floats, and others for some outputs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from worker.kernels.checks import F32, Floats
from worker.quantized.affine import Shape
from worker.quantized.layouts import LAYOUTS, Parts, Rows
from worker.quantized.scheme import Scheme
from worker.safetensors import SafetensorsFile

STRIP_VALUES = 1 << 17
"""So many at a time stay in the processor's cache."""
NEEDLESS = {
    "weight_shape", "weight_format", "input_scale", "input_zero_point", "k_scale", "v_scale",
    "output_scale", "q_scale",
}  # fmt: skip
"""Parts that say what is known, or how activations and the cache might be quantised."""


class QuantizedWeight:
    """float32 [out, in] to whoever takes it for an array."""

    dtype = F32
    ndim = 2

    def __init__(self, shape: Shape, rows: Rows) -> None:
        self.shape = shape
        self._rows = rows

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, outputs: slice) -> Floats:
        first, end, _ = outputs.indices(self.shape[0])
        found = np.empty((max(0, end - first), self.shape[1]), F32)
        step = max(1, STRIP_VALUES // self.shape[1])
        for start in range(0, len(found), step):
            stop = min(start + step, len(found))
            found[start:stop] = self._rows(first + start, first + stop)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return self[:]


Files = Mapping[str, SafetensorsFile]


def find_quantized(
    files: Files, expected: Mapping[str, tuple[int, ...]], scheme: Scheme
) -> tuple[dict[str, QuantizedWeight], set[str]]:
    """Return the weights that tensors of `files` have to be made into, and the names of those
    tensors; raise ModelFolderError."""
    layout = LAYOUTS[scheme.layout]
    linears = {name.removesuffix(".weight") for name, shape in expected.items() if len(shape) == 2}
    found, taken = {}, {name for name in files if name.rpartition(".")[2] in NEEDLESS}
    for stem, parts in _by_linear(files, linears).items():
        if not any(mark in parts for mark in layout.marks):
            continue
        shape = expected[f"{stem}.weight"]
        rows = layout.rows(Parts(stem, parts), (shape[0], shape[1]), scheme)
        found[f"{stem}.weight"] = QuantizedWeight((shape[0], shape[1]), rows)
        taken |= {f"{stem}.{part}" for part in parts.keys() & layout.parts}
        if f"{stem}.bias" not in expected and _is_zero(parts.get("bias"), f"{stem}.bias"):
            taken.add(f"{stem}.bias")
    return found, taken


def _by_linear(files: Files, linears: set[str]) -> dict[str, dict[str, SafetensorsFile]]:
    """Return the parts of each linear; a part's name may have dots."""
    parts: dict[str, dict[str, SafetensorsFile]] = {}
    for name, file in files.items():
        stem = name
        while stem and stem not in linears:
            stem = stem.rpartition(".")[0]
        if stem:
            parts.setdefault(stem, {})[name[len(stem) + 1 :]] = file
    return parts


def _is_zero(file: SafetensorsFile | None, name: str) -> bool:
    """Some tools give every linear a bias, of zeros where the model has none."""
    if file is None:
        return False
    file.check_dtype(name)
    return not file.read(name).any()
