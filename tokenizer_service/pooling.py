"""Which state of a text is its embedding, as sentence-transformers saves it beside a model.

modules.json lists what it computes one after the other; folders without it tell by names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.model_folder import Fields, ModelFolderError, read_object
from protos.common_pb2 import LAST, MEAN, Pooling

POOLING_FIELDS = {"pooling_mode_lasttoken": LAST, "pooling_mode_mean_tokens": MEAN}
POOLING_MODES = {"lasttoken": LAST, "mean": MEAN}
"""Newer spelling: the value of `pooling_mode`, which counts before the fields of the older one."""
COMPUTED = ("Transformer", "Pooling", "Normalize")
"""The last words of their types; the module before them has moved between releases."""
NO_EMBEDDING = "LogitScore"
"""Reads a score off the logits: such a folder is a reranker, whose model writes texts."""


def pooling(path: Path) -> Pooling:
    """Return what a request's vector is unless it says; raise ModelFolderError for another."""
    for file in path.glob("*_Dense/config.json"):
        raise ModelFolderError(f"{file}: a layer behind the pooling is not computed here")
    texts = read_object(path / "sentence_bert_config.json", may_lack=True)
    if texts.flag("do_lower_case"):
        raise texts.error("do_lower_case", True, "false")
    found = LAST
    for file in pooling_files(path):
        found = mode_of(read_object(file))
    return found


def pooling_files(path: Path) -> Iterable[Path]:
    """Return the configurations of the poolings; refuse modules that would change what comes out.

    Without modules.json the folder's names tell.
    """
    listed = path / "modules.json"
    if not listed.exists():
        return path.glob("*_Pooling/config.json")
    modules = [(kind_of(module), module.text("path")) for module in read_modules(listed)]
    return [path / place / "config.json" for kind, place in modules if kind == "Pooling"]


def kind_of(module: Fields) -> str:
    """Return the last word of a module's type."""
    kind = module.text("type").rpartition(".")[2]
    if kind not in (*COMPUTED, NO_EMBEDDING):
        raise module.error("type", module.get("type"), ", ".join(COMPUTED))
    return kind


def read_modules(path: Path) -> list[Fields]:
    """Return the modules of modules.json, which is a list."""
    try:
        told: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path}: is not JSON: {error}") from error
    if not isinstance(told, list) or not all(isinstance(module, dict) for module in told):
        raise ModelFolderError(f"{path}: expected a list of objects")
    return [Fields(path, module) for module in told]


def mode_of(place: Fields) -> Pooling:
    """Return the one mode that a pooling's configuration chooses."""
    if mode := place.text("pooling_mode"):
        if mode not in POOLING_MODES:
            raise place.error("pooling_mode", mode, ", ".join(POOLING_MODES))
        return POOLING_MODES[mode]
    modes = sorted(name for name in place.names() if name.startswith("pooling_mode_"))
    chosen = [mode for mode in modes if place.flag(mode)]
    if len(chosen) != 1 or chosen[0] not in POOLING_FIELDS:
        raise place.error("pooling_mode_*", chosen, f"one of {', '.join(POOLING_FIELDS)}")
    return POOLING_FIELDS[chosen[0]]
