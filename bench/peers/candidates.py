"""Who is measured, in which order, and against which of our formats.

What is compared stands side by side in the run, so that a machine that changes its speed on the
way changes both. transformers runs in float32 too: torch is slow in bfloat16 on processors that
have no instruction for it, and faster in twice the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

OURS = "Millrace"


class Candidate(NamedTuple):
    """One system with one kind of weights."""

    name: str
    weights: str
    module: str
    """What its process runs, with the interpreter that is given for it."""
    against: str
    """The weights of ours it is held against; our own rows name their own."""

    @property
    def title(self) -> str:
        return f"{self.name} {self.weights}"


CANDIDATES = (
    Candidate(OURS, "int4", "bench.peers.on_millrace", "int4"),
    Candidate("llama.cpp", "Q4_0", "bench.peers.on_llama_cpp", "int4"),
    Candidate("OpenVINO", "int4", "bench.peers.on_openvino", "int4"),
    Candidate(OURS, "int8", "bench.peers.on_millrace", "int8"),
    Candidate("llama.cpp", "Q8_0", "bench.peers.on_llama_cpp", "int8"),
    Candidate("OpenVINO", "int8", "bench.peers.on_openvino", "int8"),
    Candidate(OURS, "bf16", "bench.peers.on_millrace", "bf16"),
    Candidate("llama.cpp", "BF16", "bench.peers.on_llama_cpp", "bf16"),
    Candidate("OpenVINO", "16 bit", "bench.peers.on_openvino", "bf16"),
    Candidate("transformers", "bf16", "bench.peers.on_transformers", "bf16"),
    Candidate("transformers", "float32", "bench.peers.on_transformers", "bf16"),
    Candidate("vLLM", "bf16", "bench.peers.on_vllm", "bf16"),
)
PEERS = tuple(dict.fromkeys(c.name for c in CANDIDATES if c.name != OURS))
WEIGHTS = tuple(c.weights for c in CANDIDATES if c.name == OURS)
