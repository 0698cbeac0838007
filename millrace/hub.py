"""Models by their name on the Hugging Face hub: taken from its cache on this machine, else from it.

The library that knows the hub decides by its own variables where the cache is (HF_HOME), who asks
(HF_TOKEN) and whether the network may be used at all (HF_HUB_OFFLINE). Knows no weights.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from common.model_folder import ModelFolderError
from millrace.errors import CommandError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
TEXTS = ["*.json", "*.jinja", "merges.txt"]
WEIGHTS = ["model*.safetensors"]


def is_name(model: str) -> bool:
    """Return whether `model` is not here and could be a name there, such as Qwen/Qwen3-0.6B."""
    return NAME.fullmatch(model) is not None and not os.path.exists(model)


def fetched(name: str) -> Path:
    """Return the folder of the hub's model `name`, with all of its files that are read here.

    Weights come last, for a config that can be served. Raises CommandError.
    """
    try:  # not at the top: these are slow to import, and few commands need them
        import huggingface_hub as hub

        from worker.build import check_config
    except ImportError as error:
        why = "to take it from the Hugging Face hub: pip install huggingface-hub"
        raise _absent(name, why) from error
    try:
        check_config(Path(hub.snapshot_download(name, allow_patterns=TEXTS)))
        return Path(hub.snapshot_download(name, allow_patterns=[*TEXTS, *WEIGHTS]))
    except hub.errors.RepositoryNotFoundError as error:
        why = "the Hugging Face hub has no such model, or not for you (HF_TOKEN)"
        raise _absent(name, why) from error
    except ModelFolderError as error:
        raise CommandError(str(error)) from error
    except Exception as error:  # the library's, its HTTP client's, the file system's
        lines = str(error).splitlines() or [type(error).__name__]
        raise _absent(name, f"the Hugging Face hub did not give it: {lines[0]}") from error


def _absent(name: str, why: str) -> CommandError:
    return CommandError(f"no model folder at {name}; {why}")
