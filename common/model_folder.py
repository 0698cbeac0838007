"""A model folder's JSON files: typed fields, and errors that name the file and the field.

Read by the worker and by the text tier. What a field means is its reader's business.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ModelFolderError(Exception):
    """A model folder cannot be served; the message names the file and the field or tensor."""


class Fields:
    """An object of a JSON file; `prefix` is the way to it from the file's root."""

    def __init__(self, path: Path, raw: dict[str, Any], prefix: str = "") -> None:
        self._path = path
        self._raw = raw
        self._prefix = prefix

    def get(self, field: str) -> Any:
        """Return the raw value; None when it is absent or null."""
        return self._raw.get(field)

    def has(self, field: str) -> bool:
        """Return whether the field stands there, null or not."""
        return field in self._raw

    def names(self) -> set[str]:
        """Return the fields that are set."""
        return {name for name, value in self._raw.items() if value is not None}

    def error(self, field: str, value: object, allowed: str) -> ModelFolderError:
        return ModelFolderError(
            f"{self._path}: {self._prefix}{field} is {value!r}, allowed: {allowed}"
        )

    def missing(self, field: str) -> ModelFolderError:
        return ModelFolderError(f"{self._path}: field {self._prefix}{field} is missing")

    def size(self, field: str, default: int | None = None) -> int:
        """Return a positive integer, or `default` where there is none."""
        value = self.get(field)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.missing(field)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise self.error(field, value, "a positive integer below 2**31")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """Return a positive, finite number."""
        value = default if self.get(field) is None else self.get(field)
        if value is None:
            raise self.missing(field)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < 1e300:
            raise self.error(field, value, "a positive number below 1e300")
        return float(value)

    def text(self, field: str) -> str:
        """Return a string, empty where there is none."""
        value = "" if self.get(field) is None else self.get(field)
        if not isinstance(value, str):
            raise self.error(field, value, "a string")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        value = default if self.get(field) is None else self.get(field)
        if not isinstance(value, bool):
            raise self.error(field, value, "true or false")
        return value

    def inside(self, field: str) -> Fields | None:
        """Return the object under `field`; None when it is absent or null."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(field, value, "an object or null")
        return Fields(self._path, value, f"{self._prefix}{field}.")


def read_object(path: Path, may_lack: bool = False) -> Fields:
    """Return the object that is the whole of `path`; raise ModelFolderError.

    With `may_lack` a file that is not there is an empty object.
    """
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        if may_lack and isinstance(error, FileNotFoundError):
            return Fields(path, {})
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path}: is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelFolderError(f"{path}: expected an object, got {type(raw).__name__}")
    return Fields(path, raw)
