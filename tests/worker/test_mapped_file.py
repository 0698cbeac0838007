"""Files as bytes: hashed piece by piece, in large pages or copied into them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from worker import mapped_file
from worker.mapped_file import (
    HUGE_PAGE,
    digests,
    huge_share,
    in_huge_pages,
    map_bytes,
    mapping_of,
    own_pages_are_huge,
)

SIZE = 3 << 20
SMAPS = """{first:x}-{end:x} r--s 00000000 fe:00 1 /some/file
Rss:                3072 kB
FilePmdMapped:      2048 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /other/file
FilePmdMapped:         0 kB
"""


@pytest.fixture
def mapped(tmp_path: Path) -> mapped_file.Bytes:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    return map_bytes(path)


def test_the_hash_of_a_file_is_that_of_its_pieces(
    mapped: mapped_file.Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_file, "PIECE_BYTES", 1_000_000)
    raw = mapped.tobytes()
    pieces = [raw[start : start + 1_000_000] for start in range(0, SIZE, 1_000_000)]
    assert digests(mapped, 3) == [hashlib.sha256(piece).hexdigest() for piece in pieces]
    assert len(raw) == SIZE and len(pieces) == 4


def test_the_share_in_large_pages_is_read_from_the_system(
    mapped: mapped_file.Bytes, tmp_path: Path
) -> None:
    first = mapped.ctypes.data
    (tmp_path / "smaps").write_text(SMAPS.format(first=first, end=first + SIZE))
    assert huge_share(mapped, tmp_path / "smaps") == pytest.approx(2 / 3)
    (tmp_path / "smaps").write_text(SMAPS.format(first=first - SIZE, end=first))
    assert huge_share(mapped, tmp_path / "smaps") == 0
    assert huge_share(mapped, tmp_path / "nowhere") == 0
    assert 0 <= huge_share(mapped) <= 1


@pytest.mark.parametrize(
    ("share", "own", "stays"), [(0.9, True, True), (0.1, True, False), (0.1, False, True)]
)
def test_a_file_in_small_pages_is_copied_where_that_helps(
    mapped: mapped_file.Bytes,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    own: bool,
    stays: bool,
) -> None:
    monkeypatch.setattr(mapped_file, "huge_share", lambda _: share)
    monkeypatch.setattr(mapped_file, "own_pages_are_huge", lambda: own)
    found = in_huge_pages(mapped)
    assert (mapping_of(found) is not None) == stays
    assert np.array_equal(found, mapped)


def test_a_file_is_not_copied_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start was killed in a control group that the first one had run in."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(HUGE_PAGE))
    monkeypatch.setattr(mapped_file, "huge_share", lambda data: 0.0)
    monkeypatch.setattr(mapped_file, "own_pages_are_huge", lambda: True)
    mapped = map_bytes(path)
    for free in (HUGE_PAGE - 1, HUGE_PAGE):
        monkeypatch.setattr(mapped_file, "free_bytes", lambda free=free: free)
        assert (in_huge_pages(mapped) is mapped) == (free < HUGE_PAGE)


def test_own_pages_are_asked_of_the_system(tmp_path: Path) -> None:
    said = tmp_path / "enabled"
    assert not own_pages_are_huge(said)
    for text, huge in (("[always] madvise never", True), ("always [madvise] never", True),
                       ("always madvise [never]", False)):  # fmt: skip
        said.write_text(text)
        assert own_pages_are_huge(said) == huge
