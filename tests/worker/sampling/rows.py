"""Rows and logits for tests of the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protos import common_pb2
from tests.worker.plans import sampling, start
from worker.kernels.checks import Floats
from worker.rows import Row


def row(prompt: Sequence[int] = (1, 2, 3), vocab_size: int = 24, **fields: Any) -> Row:
    known = common_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    params = {k: v for k, v in fields.items() if k in known}
    rest = {k: v for k, v in fields.items() if k not in params}
    return Row(start(1, prompt, (), sampling=sampling(**params), **rest), vocab_size)


def some_logits(num_rows: int, vocab_size: int = 24, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    logits: Floats = (2 * rng.standard_normal((num_rows, vocab_size))).astype(np.float32)
    return logits
