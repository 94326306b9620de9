from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from scaler.net.local import FileDescriptor
from scaler.object_storage.shared_memory import SharedMemory, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="a 64-bit Linux shares memory")
MB = 1_000_000


def written(*parts: bytes) -> SharedMemory:
    return SharedMemory.written([memoryview(part) for part in parts])


def open_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_parts_round_trip_and_arrays_over_them_are_aligned() -> None:
    parts = [b"pickle", b"", os.urandom(MB), b"x", os.urandom(70_001)]
    memory = written(*parts)
    assert memory.parts() == parts
    assert all(np.frombuffer(part, np.uint8).ctypes.data % 64 == 0 for part in memory.parts() if part.nbytes)
    assert b"".join(memory.frames()) == b"".join(parts)


def test_reader_writes_affect_only_its_own_copy() -> None:
    memory = written(b"pickle", bytes(MB))
    mine, theirs = memory.parts(), memory.parts()
    mine[1][:5] = b"alter"
    assert bytes(mine[1][:5]) == b"alter"
    assert theirs[1][:5] == bytes(5)
    assert memory.parts()[1][:5] == bytes(5)


def test_process_with_the_descriptor_cannot_change_shared_data() -> None:
    memory = written(b"pickle", bytes(MB))
    with pytest.raises(PermissionError):
        os.pwrite(memory.fileno(), b"alter", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fileno(), 0)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fileno(), 2 * MB)
    with pytest.raises(PermissionError):
        mmap.mmap(memory.fileno(), MB, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    again = os.open(f"/proc/self/fd/{memory.fileno()}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"alter", 0)
    os.close(again)
    assert memory.parts() == [b"pickle", bytes(MB)]


def test_memory_without_seals_or_with_other_parts_is_refused_and_closed(tmp_path: Path) -> None:
    before = open_descriptors()
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, MB)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, MB)
    reading, writing = os.pipe()
    os.close(writing)
    for descriptor in (unsealed, file, reading, os.memfd_create("empty")):
        with pytest.raises(ValueError, match="is not the sealed memory of an object"):
            SharedMemory(FileDescriptor(descriptor), [MB])
    memory = written(bytes(MB))
    with pytest.raises(ValueError, match="is not the sealed memory of an object"):
        SharedMemory(FileDescriptor(os.dup(memory.fileno())), [MB + 1])
    with pytest.raises(ValueError, match="is not the sealed memory of an object"):
        SharedMemory(FileDescriptor(os.memfd_create("empty")), [])
    del memory
    assert open_descriptors() == before


def test_mapping_needs_no_descriptor_and_ends_with_its_last_part() -> None:
    def mappings() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count("scaler-object")

    assert mappings() == 0
    before = open_descriptors()
    kept = [written(bytes([index]) * MB).parts() for index in range(20)]
    assert open_descriptors() == before
    assert mappings() == 20
    arrays = [np.frombuffer(parts[0], np.uint8) for parts in kept]
    del kept
    assert [int(array[MB - 1]) for array in arrays] == list(range(20))
    del arrays
    assert mappings() == 0
