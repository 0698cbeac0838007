"""Compare: one prompt through two loaded models, intermediate by intermediate.

Hooks note every named tensor of both; the first that differs by more than is allowed says where
they part. Knows hooks and runners, and neither backends nor files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from protos import common_pb2
from protos import worker as wire
from worker.build import LoadedModel
from worker.kernels.checks import Floats
from worker.noise import Doubles

Noted = dict[tuple[str, int], Floats]
"""By name and layer, in the order of the forward pass; [tokens, width]."""


class Difference(NamedTuple):
    """How far the right tensor is from the left one."""

    name: str
    layer: int
    """-1 = none."""
    max_abs: float
    max_rel: float
    """`max_abs` over the largest size of the left one."""
    cosine: float
    """Of all values as one vector; 1 = the same direction."""
    is_finite: bool = True
    """False where either side holds infinities or NaN; equal ones in equal places do not part."""


def note_all(model: LoadedModel, token_ids: Sequence[int]) -> Noted:
    """Compute the prompt in one step and return every intermediate; raise ValueError."""
    outside = [i for i in token_ids if not 0 <= i < model.config.vocab_size]
    if outside or not token_ids:
        raise ValueError(
            f"token ids are {outside or 'none'}, allowed: one or more below "
            f"{model.config.vocab_size}"
        )
    if len(token_ids) > (longest := model.config.max_position_embeddings):
        raise ValueError(f"{len(token_ids)} tokens, the model has {longest} positions")
    parts: dict[tuple[str, int], list[Floats]] = {}

    def note(name: str, tensor: Floats, layer: int) -> None:
        parts.setdefault((name, layer), []).append(tensor.reshape(len(tensor), -1))

    num_blocks = -(-len(token_ids) // model.block_size)
    runner = model.runner(num_blocks)
    hook = model.register_hook("*", note)
    try:
        runner.execute(wire.ExecutePlan(0, (_start(token_ids, num_blocks),)))
    finally:
        hook.remove()
    return {place: np.concatenate(tensors) for place, tensors in parts.items()}


def _start(token_ids: Sequence[int], num_blocks: int) -> wire.SequenceStart:
    return wire.SequenceStart(
        seq_id=1,
        token_ids=np.array(token_ids, "<u4").tobytes(),
        num_prompt_tokens=len(token_ids),
        num_computed=0,
        num_tokens=len(token_ids),
        block_ids=tuple(range(num_blocks)),
        sampling=common_pb2.SamplingParams(temperature=0).SerializeToString(),
    )


def differences(left: Noted, right: Noted) -> Iterator[Difference]:
    """Compare tensor by tensor, in the order of the left pass; raise ValueError when they do not
    have the same ones."""
    if left.keys() != right.keys():
        alone = sorted(map(str, left.keys() ^ right.keys()))
        raise ValueError(f"only one of the two has {', '.join(alone[:4])}")
    for (name, layer), tensor in left.items():
        other = right[name, layer]
        if tensor.shape != other.shape:
            where = name if layer < 0 else f"{name} of layer {layer}"
            raise ValueError(f"{where}: {tensor.shape} against {other.shape}")
        yield _difference(name, layer, tensor.astype(np.float64), other.astype(np.float64))


def _difference(name: str, layer: int, left: Doubles, right: Doubles) -> Difference:
    if not left.size:
        return Difference(name, layer, 0.0, 0.0, 1.0)
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        same = np.array_equal(left, right, equal_nan=True)
        how_far = (0.0, 0.0, 1.0) if same else (np.inf, np.inf, 0.0)
        return Difference(name, layer, *how_far, is_finite=False)
    max_abs, size = float(np.abs(left - right).max()), float(np.abs(left).max())
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    cosine = float(np.vdot(left, right)) / lengths if lengths else float(max_abs == 0)
    return Difference(name, layer, max_abs, max_abs / size if size else max_abs, cosine)
