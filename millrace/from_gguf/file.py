"""A GGUF file, or all parts of a split one: its metadata as typed fields, its tensors by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from common.model_folder import Fields, ModelFolderError

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
"""How the parts of a split file end, counted from 1."""


class GgufFile:
    """`fields` is the metadata of the first part, `tensors` those of all, mapped, not read."""

    def __init__(self, path: Path) -> None:
        """Open the file; raise ModelFolderError when it, or another part of it, cannot be read."""
        read = [_read(part) for part in parts(path)]
        self.path = path
        self.fields = Fields(path, read[0][0])
        self.tensors = {one.name: one for _, tensors in read for one in tensors}

    def of_architecture(self, architecture: str) -> Fields:
        """Return the fields that begin with the architecture's name, without it."""
        prefix = f"{architecture}."
        names = [name for name in self.fields.names() if name.startswith(prefix)]
        inner = {name.removeprefix(prefix): self.fields.get(name) for name in names}
        return Fields(self.path, inner, prefix)

    def chat_templates(self) -> dict[str, str]:
        """Return the chat templates by name; the one without a name is `default`."""
        plain = "tokenizer.chat_template"
        found = {
            name.removeprefix(plain).removeprefix(".") or "default": self.fields.text(name)
            for name in sorted(self.fields.names())
            if name == plain or name.startswith(f"{plain}.")
        }
        return {name: text for name, text in found.items() if text}


def parts(path: Path) -> list[Path]:
    """Return every part of a file that is split, else the file alone."""
    found = PART.search(path.name)
    if found is None or not int(found[2]):
        return [path]
    stem, count = path.name[: found.start()], int(found[2])
    return [path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]


def _read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the metadata and the tensors of one part."""
    try:
        reader = gguf.GGUFReader(path)
        raw = {name: _plain(field.contents()) for name, field in reader.fields.items()}
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, IndexError, OverflowError) as error:  # cut, foreign or new
        why = f"is no GGUF file, a part of one, or newer than the gguf package: {error}"
        raise ModelFolderError(f"{path}: {why}") from error
    return raw, reader.tensors


def _plain(value: Any) -> Any:
    """Return a float as its shortest decimal: 9.999999974752427e-07 is the float32 of 1e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
