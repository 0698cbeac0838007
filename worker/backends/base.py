"""Backend: THE list of operators. A model is written against it and sees no array library.

T tokens of one step, R rows whose logits are wanted, H hidden size, I intermediate size, V
vocabulary, N outputs of a linear, Q = num_heads * head_dim, K = num_kv_heads * head_dim. All
activations are float32 and C-contiguous where the CPU computes; a GPU keeps those in the model's
dtype that only its own operators read (`cuda.py`), and `to_host` gives float32 everywhere. A row's
result depends on its own tokens only, bit for bit: not on T, on its place among the T, or on which
blocks hold its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Array = Any
"""An array of the backend's own library."""
Linear = Any
"""A weight [N, in] with an optional bias [N], packed as the backend likes it."""
Rotary = Any
"""The frequencies of the rotary positions, on the device."""
LayerCache = Any
"""Keys and values of one layer, [num_blocks, block_size, num_kv_heads, head_dim] each; in which
order they lie inside a block is the backend's business."""

Step = Any
"""The inputs of one step on the device, and whatever the backend derives from them.

A model reads `token_ids`, int32 [T], `logit_rows`, int32 [R]: which of the T want logits, and
`state_rows`, int32 [S]: which of them want their state after the final norm.
"""


class Outputs(NamedTuple):
    """What a pass gives: logits [R, V] of the rows that want them, states [S, H] likewise."""

    logits: Array
    states: Array


class Model(Protocol):
    """What a backend and its callers know of `worker/models/decoder.py`."""

    ops: Backend
    """What its operators are called on: the backend, or whoever looks on before it."""

    def forward(self, step: Step, caches: Sequence[LayerCache]) -> Outputs: ...
    def shift(self, caches: Sequence[LayerCache], cells: Array, delta: int) -> None: ...


class Backend(Protocol):
    """The operators with formula, shapes and dtypes; one instance per worker process."""

    takes_rows_early: bool
    """Whether `take_rows` goes before any operator. Then the last layer ends with the wanted rows:
    of a prompt it saves most of a layer; a row that wants both logits and state takes it twice."""

    @property
    def fingerprint(self) -> str:
        """Everything that decides bits: library, kernels, tiles, dtype. No thread counts."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory of all that was packed."""
        ...

    # ── weights ──────────────────────────────────────────────────────────────────────────────

    def pack_vector(self, weight: Array) -> Array:
        """Move a norm weight or an embedding table to the device as it is."""
        ...

    def pack_linear(self, weights: Sequence[Array], biases: Sequence[Array] = ()) -> Linear:
        """Stack weights [Ni, in] (and biases [Ni]) into one linear of N = sum(Ni) outputs."""
        ...

    def pack_tied(self, table: Array) -> Linear:
        """Make a linear of an embedding table [V, H], which tokens are still looked up in."""
        ...

    def pack_rotary(self, inverse_frequencies: Sequence[float], attention_factor: float) -> Rotary:
        """Move D/2 frequencies, radians per position, and the factor of cos and sin."""
        ...

    # ── operators ────────────────────────────────────────────────────────────────────────────

    def embedding(self, table: Array, token_ids: Array) -> Array:
        """out[t] = table[token_ids[t]]; [V, H], int32 [T] → [T, H]."""
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """out[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight; [T, H], [H] → [T, H]."""
        ...

    def add_rms_norm(
        self, x: Array, residual: Array, weight: Array, eps: float
    ) -> tuple[Array, Array]:
        """sum = x + residual; return (rms_norm(sum), sum); [T, H] each."""
        ...

    def linear(self, x: Array, linear: Linear) -> Array:
        """out[t] = weight @ x[t] + bias; [T, in] → [T, N]."""
        ...

    def head_norm(
        self, qkv: Array, q_weight: Array, k_weight: Array, num_heads: int, eps: float
    ) -> Array:
        """Return qkv [T, Q + 2K] with every head of q and k rms-normalised; weights [D] each."""
        ...

    def rope(
        self, qkv: Array, step: Step, cache: LayerCache, num_heads: int, rotary: Rotary
    ) -> Array:
        """Rotate q and k of qkv [T, Q + 2K] at their positions, store k and v; return q.

        Halves of a head are a pair: (a, b) → (a cos − b sin, b cos + a sin), angle = position *
        inverse frequency, both rounded to float32 and so their product; cos and sin times the
        attention factor; q is [T, num_heads, head_dim].
        """
        ...

    def paged_attention(self, q: Array, step: Step, cache: LayerCache, window: int = 0) -> Array:
        """out[t, h] = softmax(q[t, h] · keys / sqrt(D)) · values; [T, num_heads, D] → [T, Q].

        Keys and values are those of the token's own sequence at positions ≤ its own, with a window
        only the last `window` of them; query head h reads key head h * num_kv_heads // num_heads.
        """
        ...

    def gated_linear(self, x: Array, linear: Linear) -> Array:
        """silu_mul(linear(x)); [T, in] → [T, I]. Whoever makes both at once writes one."""
        ...

    def silu_mul(self, gate_up: Array) -> Array:
        """out = gate / (1 + exp(−gate)) * up; gate_up [T, 2I] is gate beside up → [T, I]."""
        ...

    def take_rows(self, x: Array, rows: Array) -> Array:
        """out[r] = x[rows[r]]; [T, H], int32 [R] → [R, H]."""
        ...

    def tap(self, name: str, layer: int, tensor: Array) -> None:
        """Nothing. Names an intermediate for whoever stands before the backend and looks on."""
        ...

    # ── beside the forward pass ──────────────────────────────────────────────────────────────

    def stored_keys(self, step: Step, cache: LayerCache) -> Array:
        """Return the keys of the step's tokens as `rope` has stored them, [T, num_kv_heads, D]."""
        ...

    def to_host(self, tensor: Array) -> Array:
        """Return a float32 NumPy copy."""
        ...

    def rope_shift(self, cache: LayerCache, cells: Array, delta: int, rotary: Rotary) -> None:
        """Turn the stored keys of `cells`, int32 [n] (block * block_size + offset), by `delta`
        positions, without the attention factor: they already have it."""
        ...
