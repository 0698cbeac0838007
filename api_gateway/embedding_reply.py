"""The reply of /v1/embeddings: one vector an input, as floats or as base64 of float32."""

from __future__ import annotations

import base64
import math
import sys
from array import array

from api_gateway.bulks import Bulks
from api_gateway.checks import refuse
from api_gateway.job import Job
from api_gateway.meter import Meter, usage_of
from api_gateway.replies import OnePiece
from api_gateway.sessions import Choice
from common.errors import Internal


class EmbeddingReply(OnePiece):
    """Waits for every input and answers with one JSON object."""

    async def finish(self, job: Job, meter: Meter) -> None:
        """Send the reply; raises InvalidRequest when more dimensions are asked for than are."""
        data = [
            {"object": "embedding", "index": choice.index, "embedding": self._vector(choice)}
            for choice in job.choices
        ]
        usage = usage_of(job)
        await self._call.reply_json(
            200,
            {
                "object": "list",
                "model": self._order.model,
                "data": data,
                "usage": {k: usage[k] for k in ("prompt_tokens", "total_tokens")},
                "timings": meter.timings(),
            },
        )

    def _vector(self, choice: Choice) -> list[float] | str:
        embedding = Bulks().note(choice).embedding
        vector = shaped(embedding, self._order.dimensions, self._order.normalize)
        return base64_of(vector) if self._order.is_base64 else vector.tolist()


def shaped(embedding: bytes, dimensions: int | None, normalize: bool) -> array[float]:
    """Return the engine's vector as it was asked for; raise InvalidRequest for what it lacks."""
    if not embedding:
        raise Internal("the engine sent no embedding")
    vector = floats(embedding)
    if dimensions is not None:
        if not 1 <= dimensions <= len(vector):
            raise refuse(
                f"dimensions is {dimensions}, the model's vectors have {len(vector)}", "dimensions"
            )
        vector = vector[:dimensions]
    return unit(vector) if normalize else vector


def floats(column: bytes) -> array[float]:
    """Return little-endian float32 as numbers."""
    vector = array("f", column)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def unit(vector: array[float]) -> array[float]:
    """Return the vector at length 1, the first dimensions of a longer one included.

    A prefix of a Matryoshka embedding is an embedding once its length is 1 again
    (Kusupati et al., 2022).
    """
    length = math.sqrt(math.fsum(x * x for x in vector))
    return array("f", [x / length for x in vector]) if length > 0 else vector


def base64_of(vector: array[float]) -> str:
    little = vector[:]
    if sys.byteorder == "big":
        little.byteswap()
    return base64.b64encode(little.tobytes()).decode()
