"""Round trips, and payloads of the first day that must decode for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protos import limits
from protos import worker as wire

START = wire.SequenceStart(7, b"\1\0\0\0", 1, 0, 1, (3,), b"s")
MESSAGES: list[tuple[Any, msgspec.Struct]] = [
    (wire.ToScheduler, wire.Add(1, 2, "r", b"\1\0\0\0", wire.Limits(max_tokens=4), b"")),
    (wire.ToScheduler, wire.StopAt(1, 2, 3)),
    (wire.ToFront, wire.StepOutput((wire.SessionOutput(1, b"", b"", b"", b""),))),
    (wire.ToWorker, wire.ExecutePlan(1, starts=(START,), steps=(wire.SequenceStep(8, 1, (4,)),))),
    (wire.FromWorker, wire.StepResult(1, (7,), (1,), (42,))),
]


@pytest.mark.parametrize(("union", "message"), MESSAGES)
def test_round_trip(union: Any, message: msgspec.Struct) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) == message


def test_old_bytes_still_decode() -> None:
    """Fields are only appended: a message without the newer ones gets their defaults."""
    old = msgspec.msgpack.encode(["Add", 1, 2, "r", b"\1\0\0\0", [16], b""])
    got = msgspec.msgpack.decode(old, type=wire.ToScheduler)
    assert got == wire.Add(1, 2, "r", b"\1\0\0\0", wire.Limits(max_tokens=16), b"")


def test_an_unknown_message_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(["Hello", "h"]), type=wire.ToScheduler)


@pytest.mark.parametrize("name", limits.LIMITS)
def test_bounds_are_inclusive_and_finite(name: str) -> None:
    low, high = limits.LIMITS[name]
    assert limits.violation(name, low) is None
    assert limits.violation(name, high) is None
    for bad in (low - 1, high * 2 + 1, float("nan"), float("inf")):
        assert name in (limits.violation(name, bad) or "")


def test_a_chain_names_each_of_its_stages_once() -> None:
    assert limits.samplers_violation(["top_k", "temperature"]) is None
    assert limits.samplers_violation([], ["top_p"]) is None
    assert "'top-k'" in (limits.samplers_violation(["temperature", "top-k"]) or "")
    assert "top_k more than once" in (
        limits.samplers_violation(["top_k", "temperature", "top_k"]) or ""
    )


def test_a_field_whose_stage_is_not_in_the_chain_is_refused() -> None:
    assert limits.samplers_violation(["penalties"], ["presence_penalty"]) is None
    why = limits.samplers_violation(["top_k"], ["top_k", "presence_penalty"]) or ""
    assert why.startswith("presence_penalty does not act") and "penalties" in why


def test_a_long_chain_is_refused_by_its_first_repetition() -> None:
    """Of a body's 4 MiB there is room for half a million names: none is counted."""
    why = limits.samplers_violation(["top_p", *["top_k"] * 500_000])
    assert why == "samplers names top_k more than once"


def test_a_loss_counts_against_what_got_no_further() -> None:
    assert [limits.attempts(0, 0), limits.attempts(1, 0), limits.attempts(2, 7)] == [1, 2, 3]
    assert [limits.attempts(before, limits.PROOF_TOKENS) for before in (0, 1, 2)] == [1, 1, 1]
