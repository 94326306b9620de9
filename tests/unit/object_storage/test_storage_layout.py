from __future__ import annotations

import os
from typing import Any

import pytest

from scaler.object_storage import body as layout
from scaler.object_storage.body import as_bytes_view, assemble, cut

MIB = 1024 * 1024


def views(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


def test_small_parts_share_a_frame_and_are_separated_again() -> None:
    parts = [b"a", b"", b"bc", bytes(range(256))]
    messages = list(cut(views(*parts)))
    assert [len(message) for message in messages] == [1]
    assert assemble([1, 0, 2, 256], messages[0]) == parts


def test_large_parts_are_copied_neither_on_sending_nor_on_receiving() -> None:
    large = bytearray(MIB)
    (message,) = cut([memoryview(b"pickle"), memoryview(large), memoryview(b"more")])
    assert message[1].obj is large
    parts = assemble([6, MIB, 4], message)
    assert parts[1].obj is large
    assert all(part.readonly for part in parts)


def test_splits_only_parts_larger_than_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_ATTACHED_BYTES", 3 * MIB)
    parts = views(b"pickle", bytes(MIB), bytes(2 * MIB), os.urandom(4 * MIB + 1), b"end")
    sizes = [[frame.nbytes for frame in message] for message in cut(parts)]
    assert sizes == [[6, MIB, MIB], [MIB, MIB, MIB], [MIB, MIB, 1, 3]]
    joined = assemble([part.nbytes for part in parts], [frame for message in cut(parts) for frame in message])
    assert joined == parts


def test_missing_bytes_raise_instead_of_shortening_a_part() -> None:
    with pytest.raises(ValueError, match="too short"):
        assemble([3], views(b"ab"))


def test_typed_and_multidimensional_buffers_are_viewed_as_bytes() -> None:
    numbers: Any = memoryview(bytes(24)).cast("d").cast("B").cast("d", [1, 3])
    nothing: Any = memoryview(bytes(0)).cast("d")
    assert as_bytes_view(numbers).nbytes == len(as_bytes_view(numbers)) == 24
    assert len(as_bytes_view(nothing)) == 0
