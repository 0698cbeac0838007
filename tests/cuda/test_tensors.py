"""Arrays of a device: created, loaded, viewed, cut, copied; the emulator's and a GPU's alike."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.cuda.case import Case, i32
from worker.backends.gpu import ALIGNMENT, Array, Gpu, Scratch

DTYPES = ("<f4", "<u2", "<i4", "<u8", "<i8", "|u1")
STAGED_BYTES = 16 * 2**20
"""Larger ones go to a GPU through pinned buffers, in pieces."""


def address(array: Array) -> int:
    """Return where the first byte lies, in the device's own count."""
    pointer = array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data
    return int(pointer)


def load(gpu: Gpu, values: np.ndarray) -> Array:  # type: ignore[type-arg]
    target = gpu.empty(values.nbytes).view(values.dtype).reshape(values.shape)
    gpu.write(target, values)
    return target


@pytest.mark.parametrize("num_bytes", [0, 1, 255, 257, 4096, 10**6])
def test_new_memory_is_aligned_bytes(gpu: Gpu, num_bytes: int) -> None:
    arrays = [gpu.empty(num_bytes) for _ in range(3)]
    for array in arrays:
        assert array.shape == (num_bytes,) and array.dtype == np.uint8
        assert array.nbytes == num_bytes
    if num_bytes:
        places = sorted(address(array) for array in arrays)
        assert all(place % ALIGNMENT == 0 for place in places)
        assert min(np.diff(places)) >= num_bytes, "two arrays share memory"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_round_trip_keeps_every_bit(case: Case, dtype: str) -> None:
    kind = np.dtype(dtype)
    values = case.rng.integers(0, 256, (3, 5, 7 * kind.itemsize), np.uint8).view(kind)
    device = load(case.gpu, values)
    assert (device.shape, device.dtype, device.nbytes) == (values.shape, kind, values.nbytes)
    back = case.gpu.read(device)
    assert type(back) is np.ndarray and back.dtype == kind
    assert back.tobytes() == values.tobytes(), "nan payloads too"


def test_the_source_may_be_used_again_at_once(case: Case) -> None:
    values = np.arange(10**6, dtype=np.int32)
    device = load(case.gpu, values)
    values[:] = -1
    np.testing.assert_array_equal(case.gpu.read(device), np.arange(10**6))
    first = case.gpu.read(device)
    case.gpu.write(device, values)
    assert first[5] == 5, "what was read is nobody else's"


@pytest.mark.parametrize("more", [0, 3, STAGED_BYTES // 2 + 5])
def test_large_loads_go_in_pieces(case: Case, more: int) -> None:
    pattern = np.resize(np.arange(256, dtype=np.uint8), STAGED_BYTES + more)
    device = load(case.gpu, pattern)
    pattern[:100] = pattern[-100:]  # it was sent
    back = case.gpu.read(device)
    assert back[:100].tolist() == list(range(100)), "it was sent before"
    np.testing.assert_array_equal(back[100:], pattern[100:])


def test_views_are_the_same_bits(case: Case) -> None:
    values = case.normal(4, 6)
    device = load(case.gpu, values)
    np.testing.assert_array_equal(case.gpu.read(device.view(np.uint32)), values.view(np.uint32))
    halves = device.view(np.uint16)
    assert halves.shape == (4, 12) and address(halves) == address(device)
    np.testing.assert_array_equal(case.gpu.read(halves), values.view(np.uint16))
    np.testing.assert_array_equal(case.gpu.read(device.reshape(-1)), values.reshape(-1))
    np.testing.assert_array_equal(case.gpu.read(device.reshape(2, 3, 4)), values.reshape(2, 3, 4))
    case.gpu.write(device.reshape(-1).view(np.uint32), np.zeros(24, np.uint32))
    assert not case.gpu.read(device).any(), "a view is no copy"


def test_slices_begin_where_they_should(case: Case) -> None:
    values = case.rng.integers(0, 2**31, (6, 4, 8)).astype(np.int32)
    device = load(case.gpu, values)
    for cut in (device[2], device[-1], device[1:4], device[3][1:], device[0][2][3:7]):
        assert (address(cut) - address(device)) % 4 == 0
    assert address(device[2]) - address(device) == 2 * 4 * 8 * 4
    assert address(device[1][2][3:]) - address(device) == (32 + 16 + 3) * 4
    np.testing.assert_array_equal(case.gpu.read(device[1:4]), values[1:4])
    np.testing.assert_array_equal(case.gpu.read(device[0][2][3:7]), values[0][2][3:7])
    case.gpu.write(device[4][1:3], np.zeros((2, 8), np.int32))
    values[4, 1:3] = 0
    np.testing.assert_array_equal(case.gpu.read(device), values)
    assert len(device[5:2]) == 0 == device[5:2].nbytes
    rows = list(device)
    assert len(rows) == 6 and address(rows[3]) == address(device[3])


def test_an_odd_offset_of_bytes_is_still_a_slice(case: Case) -> None:
    raw = case.rng.integers(0, 256, 4096, np.uint8)
    device = load(case.gpu, raw)
    np.testing.assert_array_equal(case.gpu.read(device[3:1000]), raw[3:1000])
    part = device[256:768].view(np.float32).reshape(8, 16)
    assert address(part) % ALIGNMENT == 0
    np.testing.assert_array_equal(case.gpu.read(part).view(np.uint8).reshape(-1), raw[256:768])


def test_copies_on_the_device(case: Case) -> None:
    """Whole arrays and parts of them, by the kernel that copies pages; the source stays."""
    values = case.rng.integers(0, 2**32, (7, 5, 4), dtype=np.uint32)  # 7 pages of 5 chunks
    device = load(case.gpu, values)
    pairs = case.put(np.array([[0, 6], [3, 1]], np.int32))
    case.gpu.launch("page_copy", (2, 1), 128, (device, pairs, i32(7), i32(5)))
    values[[6, 1]] = values[[0, 3]]
    np.testing.assert_array_equal(case.gpu.read(device), values)
    beyond = device[2:]  # a slice is an argument like any other
    case.gpu.launch("page_copy", (1, 1), 128, (beyond, case.put(np.array([[0, 2]], np.int32)),
                                               i32(5), i32(5)))  # fmt: skip
    values[4] = values[2]
    np.testing.assert_array_equal(case.gpu.read(device), values)


def test_pinned_memory_takes_copies_behind_launches(case: Case) -> None:
    values = case.rng.integers(0, 2**32, (3, 2, 4), dtype=np.uint32)
    device = load(case.gpu, values)
    pinned = case.gpu.pinned(values.nbytes)
    assert pinned.shape == (values.nbytes,) and pinned.flags.writeable
    pairs = case.put(np.array([[0, 2]], np.int32))
    case.gpu.launch("page_copy", (1, 1), 128, (device, pairs, i32(3), i32(2)))
    target = pinned.view(np.uint32).reshape(values.shape)
    case.gpu.read_into(target, device)
    case.gpu.wait()
    values[2] = values[0]
    np.testing.assert_array_equal(target, values)


def test_too_much_memory_names_the_sizes(gpu: Gpu) -> None:
    wanted = gpu.total_bytes + 1
    with pytest.raises(MemoryError, match=rf"{wanted} bytes do not fit on .*, \d+ are free"):
        gpu.empty(wanted)
    assert gpu.empty(1000).nbytes == 1000, "the device is as good as before"


def test_what_nobody_holds_is_free_again(gpu: Gpu) -> None:
    gpu.trim()
    before = gpu.free_bytes
    array = gpu.empty(2**26)
    part = array[5:9]
    assert gpu.free_bytes <= before - 2**26
    del array
    gpu.trim()
    assert gpu.free_bytes <= before - 2**26, "a slice holds all of it"
    del part
    gpu.trim()
    assert before - 2**22 <= gpu.free_bytes <= gpu.total_bytes


def test_marks_tell_the_time_of_what_stands_between(case: Case) -> None:
    gpu, values = case.gpu, case.put(np.zeros((2, 4096, 4), np.uint32))
    pairs = case.put(np.array([[0, 1]], np.int32))
    first = gpu.mark()
    for _ in range(50):
        gpu.launch("page_copy", (1, 1), 128, (values, pairs, i32(2), i32(4096)))
    middle, last = gpu.mark(), gpu.mark()
    last.wait()
    assert first.seconds_until(last) >= first.seconds_until(middle) > 0


def test_a_device_says_what_it_is(gpu: Gpu) -> None:
    assert gpu.name and gpu.driver


def test_buffers_of_an_arena_stay_where_they_are(gpu: Gpu) -> None:
    scratch = Scratch(gpu)
    first = scratch.take("a", (3, 5), np.float32)
    other = scratch.take("b", (100,), np.uint16)
    assert first.shape == (3, 5) and first.dtype == np.float32 and other.dtype == np.uint16
    smaller = scratch.take("a", (2,), np.int32)
    assert address(smaller) == address(first) != address(other)
    assert scratch.num_allocations == 2
    larger = scratch.take("a", (1000,), np.float32)
    assert scratch.num_allocations == 3 and larger.nbytes == 4000
    assert scratch.num_bytes == 4000 + 256
    again = scratch.take("a", (999,), np.float32)
    assert address(again) == address(larger) and scratch.num_allocations == 3


def test_inputs_go_up_in_one_piece(case: Case) -> None:
    rng = case.rng
    values = [
        rng.integers(0, 9, 5, np.int32), np.zeros((0, 4), np.int32), rng.integers(0, 9, (3, 2)),
        case.normal(70), rng.integers(0, 2**16, 1).astype(np.uint16),
    ]  # fmt: skip
    placed = Scratch(case.gpu).put_all("inputs", values)
    assert [address(array) % ALIGNMENT for array in placed if array.nbytes] == [0] * 4
    for array, expected in zip(placed, values, strict=True):
        assert array.shape == expected.shape and array.dtype == expected.dtype
        np.testing.assert_array_equal(case.gpu.read(array), expected)


def test_bytes_are_little_endian() -> None:
    assert sys.byteorder == "little", "bits of 16-bit floats are cut out of bytes"
