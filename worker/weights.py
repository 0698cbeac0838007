"""The weights of a model folder: one file, or the shards an index names, all checked up front.

Knows model.safetensors and model.safetensors.index.json. The names and shapes to expect come from
the model class.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from common.model_folder import ModelFolderError
from worker.kernels.checks import Stored, to_float32
from worker.models.config import ADAPTER, ADAPTER_ALONE
from worker.quantized.scheme import Scheme
from worker.quantized.weight import QuantizedWeight, find_quantized
from worker.safetensors import SafetensorsFile, Stamp

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".safetensors")
BASE = "model."  # before the tensors of the model without its head
SAMPLE_BYTES = 4096
STRIP_ROWS = 1024


class FolderWeights:
    """Tensors by name; every expected one exists with its shape, and no other does."""

    def __init__(
        self,
        folder: Path,
        expected: Mapping[str, tuple[int, ...]],
        ignored: Collection[str] = (),
        twins: Mapping[str, str] | None = None,
        scheme: Scheme | None = None,
    ) -> None:
        """`twins`: tensors that may stand under another name instead."""
        self._folder = folder
        self._expected = expected.keys()
        self._homes = _with_twins(_named_in_full(_open(folder)), twins or {})
        self._quantized, parts = (
            find_quantized(self._homes, expected, scheme) if scheme else ({}, set())
        )
        found = self._homes.keys() - parts - (set(ignored) - expected.keys())
        found |= self._quantized.keys()
        if missing := sorted(expected.keys() - found):
            raise ModelFolderError(f"{folder}: missing tensors: {_some(missing)}")
        if unexpected := sorted(found - expected.keys()):
            raise ModelFolderError(f"{folder}: unexpected tensors: {_some(unexpected)}")
        for name, shape in expected.items():
            if name not in self._quantized:
                self._check_shape(name, shape)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        home = self._homes[name]
        home.check_dtype(name)
        if (actual := home.tensors[name].shape) != shape:
            raise ModelFolderError(
                f"{home.path}: tensor {name} has shape {list(actual)}, expected {list(shape)}"
            )

    def read(self, name: str) -> Stored | QuantizedWeight:
        """Return tensor `name` as it lies in the file; a view where that is possible.

        One that is quantised there is float32, made when it is taken for an array.
        """
        if name in self._quantized:
            return self._quantized[name]
        return self._homes[name].read_stored(name)

    def differ(self, name: str, other: str) -> bool:
        """Return whether the folder has both tensors, and they are not the same."""
        if not {name, other} <= self._homes.keys() - self._quantized.keys():
            return False
        homes = {one: self._homes[one] for one in (name, other)}
        dtypes = {home.check_dtype(one) for one, home in homes.items()}
        is_one = len(dtypes) == 1  # some exporters widen the one and not the other
        left, right = (
            home.read_stored(one) if is_one else home.read(one) for one, home in homes.items()
        )
        if left.shape != right.shape:
            return True
        strips = range(0, len(left), STRIP_ROWS)
        found = any(
            left[i : i + STRIP_ROWS].tobytes() != right[i : i + STRIP_ROWS].tobytes()
            for i in strips
        )
        self.let_go()
        return found

    def find_not_finite(self) -> str:
        """Return a tensor that holds what is no finite number, with its file; "" without one."""
        for name in sorted(self._expected):
            if not np.isfinite(to_float32(np.asarray(self.read(name)))).all():
                home = self._homes.get(name)
                return f"{home.path if home else self._folder}: tensor {name}"
        return ""

    @property
    def num_bytes(self) -> int:
        """Size of all tensors, as they lie in the files."""
        tensors = (file.tensors[name] for name, file in self._homes.items())
        return sum(tensor.stop - tensor.start for tensor in tensors)

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """What tells later whether one of the files was written to."""
        return tuple({file.stamp for file in self._homes.values()})

    def let_go(self) -> None:
        """Give back the memory of what was read; views stay, and read the file again."""
        for file in set(self._homes.values()):
            file.let_go()

    def fingerprint(self) -> str:
        """Hash config.json and of every tensor its name, dtype, shape and first 4 KiB."""
        digest = hashlib.sha256((self._folder / "config.json").read_bytes())
        for name, file in sorted(self._homes.items()):
            tensor = file.tensors[name]
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(file.sample(name, SAMPLE_BYTES))
        return digest.hexdigest()[:16]


def stored_dtype(folder: Path, *names: str) -> str:
    """Return the type of the first of `names` that the folder has, for configs that do not say."""
    homes = _named_in_full(_open(folder))
    stored = next((homes[name].tensors[name].dtype for name in names if name in homes), "")
    return {"BF16": "bfloat16", "F16": "float16"}.get(stored, "float32")


def is_bare(folder: Path) -> bool:
    """Return whether the folder holds a base model by itself, without a head."""
    names = _open(folder).keys()
    return not any(name.startswith((BASE, "lm_head.")) for name in names)


def _open(folder: Path) -> dict[str, SafetensorsFile]:
    """Return the file that holds each tensor.

    One file beside an index is what counts, as in transformers: saving again leaves the old index.
    """
    if _is_there(folder / SINGLE):
        file = SafetensorsFile(folder / SINGLE)
        return dict.fromkeys(file.tensors, file)
    if _is_there(folder / INDEX):
        return _open_shards(folder, folder / INDEX)
    if _is_there(folder / ADAPTER):
        raise ModelFolderError(f"{folder} {ADAPTER_ALONE}")
    others = sorted(one.name for one in folder.glob("*") if one.suffix in OTHER_WEIGHTS)
    is_gguf = any(name.endswith(".gguf") for name in others)
    remedy = (
        "make a folder of it with millrace convert"
        if is_gguf
        else "save its model anew as safetensors"
    )
    beside = f", but {_some(others)}: {remedy}" if others else ""
    raise ModelFolderError(f"{folder}: holds neither {SINGLE} nor {INDEX}{beside}")


def _named_in_full(homes: dict[str, SafetensorsFile]) -> dict[str, SafetensorsFile]:
    """Name the tensors as in a model with its head, also those of a base model saved by itself."""
    if any(name.startswith(BASE) for name in homes):
        return homes

    def full(name: str) -> str:
        return name if name.startswith("lm_head.") else BASE + name

    for file in set(homes.values()):
        file.tensors = {full(name): tensor for name, tensor in file.tensors.items()}
    return {full(name): file for name, file in homes.items()}


def _with_twins(
    homes: dict[str, SafetensorsFile], twins: Mapping[str, str]
) -> dict[str, SafetensorsFile]:
    """Give a tensor that is missing the one that stands under the other name."""
    for name, twin in twins.items():
        if name not in homes and twin in homes:
            file = homes[name] = homes.pop(twin)
            file.tensors = {name if n == twin else n: one for n, one in file.tensors.items()}
    return homes


def _is_there(path: Path) -> bool:
    try:
        path.stat()  # exists() takes every error for a no from Python 3.14 on
        return True
    except FileNotFoundError:
        return False
    except OSError as error:  # a name that is too long, a folder of others
        why = f"{path.name[:100]}: cannot be read: {error.strerror}"
        raise ModelFolderError(f"{path.parent}: {why}") from error


def _open_shards(folder: Path, index: Path) -> dict[str, SafetensorsFile]:
    weight_map = _weight_map(index)
    shards: dict[str, SafetensorsFile] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not _is_there(folder / name):
            raise ModelFolderError(
                f"{index}: names shard {name[:100]!r}, which is not in the folder"
            )
        shards[name] = SafetensorsFile(folder / name)
    homes = {tensor: shards[shard] for tensor, shard in weight_map.items()}
    for tensor, file in homes.items():
        if tensor not in file.tensors:
            raise ModelFolderError(f"{file.path}: tensor {tensor} is missing, {INDEX} puts it here")
    return homes


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        return {str(name): str(shard) for name, shard in weight_map.items()}
    except OSError as error:
        raise ModelFolderError(f"{index}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFolderError(f"{index}: has no object weight_map of tensor → shard") from error


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
