"""Protos and structs say the same."""

from __future__ import annotations

from array import array

import pytest

from common.errors import BY_KIND
from engine_core.scheduling.request import FinishReason
from engine_core.translate import to_add, to_batch, to_finish
from protos import common_pb2 as common
from protos.engine_pb2 import GenerateRequest
from protos.worker import Finished, Logprobs, SessionOutput


def test_the_reasons_have_the_numbers_of_the_proto() -> None:
    assert {reason.name: int(reason) for reason in FinishReason} == dict(
        common.FinishReason.items()
    )


def test_a_request() -> None:
    limits = common.Limits(
        kind=common.EMBED, max_tokens=5, min_tokens=2, stop_token_ids=array("I", [7, 8]).tobytes(),
        n=2, logprobs=0, priority=-3, tenant="t", cache_salt=b"s", deadline_ms=1500, first_choice=4,
        prompt_logprobs=2, has_grammar=True, n_keep=0, rotate_kv=True, pooling=common.MEAN,
        report_progress=True, waited_ms=2500, max_is_ours=True,
    )  # fmt: skip
    request = GenerateRequest(
        slot=9, request_id="r", prompt_token_ids=b"\1\0\0\0", resumed_token_ids=[b"", b"\2\0\0\0"],
        limits=limits, sampling=b"opaque", attempt=1,
    )  # fmt: skip
    add = to_add(6, request)
    assert (add.session, add.slot, add.request_id, add.attempt) == (6, 9, "r", 1)
    assert add.resumed_token_ids == (b"", b"\2\0\0\0")
    assert (add.prompt_token_ids, add.sampling) == (b"\1\0\0\0", b"opaque")
    got = add.limits
    assert (got.max_tokens, got.min_tokens, got.stop_token_ids, got.n) == (5, 2, (7, 8), 2)
    assert (got.logprobs, got.priority, got.tenant, got.cache_salt) == (0, -3, "t", b"s")
    assert (got.deadline_s, got.kind, got.first_choice) == (1.5, "embed", 4)
    assert (got.prompt_logprobs, got.has_grammar, got.n_keep) == (2, True, 0)
    assert (got.rotate_kv, got.pooling, got.report_progress) == (True, "mean", True)
    assert (got.waited_s, got.max_is_ours) == (2.5, True)


def test_what_is_unset_is_none() -> None:
    limits = to_add(1, GenerateRequest()).limits
    assert (limits.n, limits.logprobs, limits.deadline_s, limits.kind) == (
        1,
        None,
        None,
        "generate",
    )


def test_a_torn_column_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="bytes"):
        to_add(1, GenerateRequest(limits=common.Limits(stop_token_ids=b"torn!")))


def test_a_finish_with_and_without_error() -> None:
    plain = to_finish(Finished(4, 1, 10, 0, 3, 0.5, 0.25, 1.0, 2, stop_token_id=0))
    assert (plain.slot, plain.reason, plain.stop_token_id) == (4, common.STOPPED, 0)
    assert plain.HasField("stop_token_id") and not plain.HasField("error")
    assert (plain.timings.decode_s, plain.timings.num_preemptions) == (1.0, 2)
    row = Finished(
        4, 5, 0, 0, 0, 0, 0, 0, 0, None, "Overloaded", "full", "prompt", "queue_full", 1500
    )  # fmt: skip
    error = to_finish(row).error
    assert (error.kind, error.message, error.param) == ("Overloaded", "full", "prompt")
    assert (error.code, error.retry_after_ms) == ("queue_full", 1500)
    assert error.kind in BY_KIND


def test_columns_pass_as_they_are() -> None:
    rows = (Logprobs(3, 5, (1, 2), (-0.5, -1.5)),)
    batch = to_batch(SessionOutput(1, b"slot", b"", b"offs", b"toks", (), rows))
    assert (batch.slots, batch.counts, batch.token_offsets) == (b"slot", b"", b"offs")
    assert batch.token_ids == b"toks"
    assert (batch.logprobs[0].slot, batch.logprobs[0].index) == (3, 5)
    assert list(batch.logprobs[0].token_ids) == [1, 2]
