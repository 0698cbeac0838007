"""CudaLogits: what a pass leaves on the GPU, and how a host sampler gets at it.

Knows rows and places; draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from worker.backends.gpu import Array, Gpu, Mark
from worker.kernels.checks import Floats


class CudaLogits:
    """Rows of logits that lie on a GPU; a single row, or iterating, brings them to the host."""

    def __init__(
        self,
        gpu: Gpu,
        values: Array,
        places: Sequence[int],
        vocab_size: int,
        begun: Mark,
        bucket: int = 0,
    ) -> None:
        """values: float32 [any, at least vocab_size] on the device.

        `begun` is where their pass began, `bucket` the rows of its graph, 0 = launch by launch.
        """
        self.values = values
        self.places = list(places)
        self.begun = begun
        self.bucket = bucket
        self._gpu = gpu
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, wanted: int) -> Floats: ...
    @overload
    def __getitem__(self, wanted: slice | Sequence[int]) -> CudaLogits: ...
    def __getitem__(self, wanted: Any) -> Any:
        if isinstance(wanted, int):
            return self._gpu.read(self.values[self.places[wanted]])[: self._vocab_size]
        some = (
            self.places[wanted] if isinstance(wanted, slice) else [self.places[i] for i in wanted]
        )
        return CudaLogits(self._gpu, self.values, some, self._vocab_size, self.begun, self.bucket)

    def __iter__(self) -> Iterator[Floats]:
        return (self[i] for i in range(len(self)))
