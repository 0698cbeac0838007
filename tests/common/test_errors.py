from __future__ import annotations

import pytest

from common import errors
from protos import common_pb2


@pytest.mark.parametrize("kind", errors.BY_KIND)
def test_every_error_survives_the_wire(kind: str) -> None:
    sent = errors.BY_KIND[kind]("why", param="top_p", code="c", retry_after_s=1.5)
    detail = common_pb2.ErrorDetail(**sent.fields())
    got = errors.from_detail(common_pb2.ErrorDetail.FromString(detail.SerializeToString()))
    assert type(got) is type(sent)
    assert (got.message, got.param, got.code, got.retry_after_s) == ("why", "top_p", "c", 1.5)


def test_an_unknown_kind_is_our_fault() -> None:
    got = errors.from_detail(common_pb2.ErrorDetail(kind="Nonsense", message="m"))
    assert isinstance(got, errors.Internal)
    assert got.http_status == 500
