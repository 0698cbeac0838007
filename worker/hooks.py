"""Hooks: callbacks that see the named intermediates of a forward pass.

Without a hook nothing of this exists: a first one puts `Watched` before the model's
backend, the last one that goes takes it away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, cast

from worker.backends.base import Array, Backend, LayerCache, Model, Rotary, Step

log = logging.getLogger(__name__)
NAMES = (
    "embedding", "attn_norm", "qkv", "head_norm", "rope_q", "rope_k", "attn_out", "o_proj",
    "mlp_norm", "gate_up", "mlp_act", "down", "final_norm", "logits",
)  # fmt: skip
"""Of `worker/models/layers.py` and `decoder.py`; from attn_norm to down once a layer."""

Callback = Callable[[str, Array, int], None]
"""(name, tensor, layer): a float32 NumPy copy, one row per token or wanted row; -1 = no layer."""


class Watched:
    """Every operator of the backend behind it, and a tap that tells the hooks."""

    takes_rows_early = False
    """Who looks on sees every row."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.hooks: tuple[Hook, ...] = ()
        self._keys: Array = None
        self._gate_up: Array = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def rope(
        self, qkv: Array, step: Step, cache: LayerCache, num_heads: int, rotary: Rotary
    ) -> Array:
        """As the backend's; the keys are where it has stored them."""
        q = self.backend.rope(qkv, step, cache, num_heads, rotary)
        self._keys = self.backend.stored_keys(step, cache)
        return q

    def gated_linear(self, x: Array, linear: Any) -> Array:
        """As the backend's, in two steps, so that what is gated can be shown."""
        self._gate_up = self.backend.linear(x, linear)
        return self.backend.silu_mul(self._gate_up)

    def tap(self, name: str, layer: int, tensor: Array) -> None:
        """Show a tensor to the hooks of its name."""
        if name == "mlp_act":
            self._show("gate_up", layer, self._gate_up)
        self._show(name, layer, tensor)
        if name == "rope_q":
            self._show("rope_k", layer, self._keys)

    def _show(self, name: str, layer: int, tensor: Array) -> None:
        for hook in self.hooks:
            if fnmatchcase(name, hook.pattern) and (shown := self.backend.to_host(tensor)).size:
                self._call(hook, name, shown, layer)

    @staticmethod
    def _call(hook: Hook, name: str, shown: Array, layer: int) -> None:
        """Call one; a fault that stayed would end the same step of every life of the engine."""
        try:
            hook.callback(name, shown, layer)
        except (Exception, SystemExit):  # exit() there would end the thread that computes
            hook.remove()
            log.exception("a hook failed and is removed: %s of %s", name, hook.pattern)


class Hook:
    """A registered callback; `remove` ends it and may be called again."""

    def __init__(self, watched: Watched, model: Model, pattern: str, callback: Callback) -> None:
        self.pattern = pattern
        self.callback = callback
        self._watched = watched
        self._model = model

    def remove(self) -> None:
        self._watched.hooks = tuple(hook for hook in self._watched.hooks if hook is not self)
        if not self._watched.hooks:
            self._model.ops = self._watched.backend


def register_hook(model: Model, pattern: str, callback: Callback) -> Hook:
    """Call `callback` for every intermediate whose name matches, shell style (`*`, `rope_?`).

    One of no rows, such as the logits of a chunk within a prompt, is not shown.

    It runs in the thread that computes, between two operators; what it raises is logged and
    removes it, the step goes on. Raises ValueError for a pattern that no name matches.
    """
    if not any(fnmatchcase(name, pattern) for name in NAMES):
        raise ValueError(f"a hook's name {pattern!r} matches none of {', '.join(NAMES)}")
    ops: object = model.ops
    watched = ops if isinstance(ops, Watched) else Watched(model.ops)
    hook = Hook(watched, model, pattern, callback)
    watched.hooks = (*watched.hooks, hook)
    model.ops = cast(Backend, watched)
    return hook
