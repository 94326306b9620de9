"""A journal after a crash contains everything that the disk had confirmed, in order."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.journal.directory import JournalDirectory
from scaler.journal.records import HEAD_BYTES, HEADER_BYTES, JournalError, Replay, pack, pack_header

bodies = st.binary(min_size=1, max_size=40)
MARK = b"the mark"


def segment(first: int, contents: list[bytes], durable: Callable[[int], int] = lambda sequence: 0) -> bytes:
    """Return a segment with these records. durable: the confirmed number stored in a record, by its own number."""
    rows = enumerate(contents, first)
    return pack_header(MARK) + b"".join(pack(MARK, number, durable(number), body) for number, body in rows)


def replayed(*segments: bytes) -> list[bytes]:
    replay = Replay()
    return [record.body for number, data in enumerate(segments) for record in replay.read(f"segment {number}", data)]


@given(st.lists(bodies, max_size=6), st.integers(0, 100))
def test_truncated_segment_keeps_all_records_before_the_cut(contents: list[bytes], zeros: int) -> None:
    whole = segment(1, contents)
    ends = [HEADER_BYTES]
    for body in contents:
        ends.append(ends[-1] + HEAD_BYTES + len(body))
    for cut in range(len(whole) + 1):
        count = max((number for number, end in enumerate(ends) if end <= cut), default=0)
        data = whole[:cut] + bytes(zeros) if cut >= HEADER_BYTES else b""
        if zeros and cut < len(whole) and not any(whole[cut:]):
            continue  # only zeros were truncated
        found = replayed(data)
        assert found == contents[:count] or (found == contents[: count + 1] and not any(whole[cut : ends[count + 1]]))


@given(st.lists(bodies, min_size=1, max_size=6), st.data())
def test_wrong_byte_loses_only_unconfirmed_records_or_raises(contents: list[bytes], data: st.DataObject) -> None:
    confirmed = data.draw(st.integers(0, len(contents) - 1), "records that the last one knows to be confirmed")
    whole = segment(1, contents, lambda sequence: min(sequence - 1, confirmed))
    at = data.draw(st.integers(HEADER_BYTES, len(whole) - 1), "place of the wrong byte")
    wrong = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    ends = [HEADER_BYTES]
    for body in contents:
        ends.append(ends[-1] + HEAD_BYTES + len(body))
    before = max(number for number, end in enumerate(ends) if end <= at)
    if before < confirmed:  # the last record is complete, and contains the confirmed number
        with pytest.raises(JournalError, match="damaged"):
            replayed(wrong)
    else:
        assert replayed(wrong) == contents[:before]


@given(st.lists(bodies, max_size=3), st.lists(bodies, min_size=2, max_size=4), st.lists(bodies, max_size=3), st.data())
def test_rewritten_records_count_whatever_remains_in_the_old_segment(
    first: list[bytes], again: list[bytes], more: list[bytes], data: st.DataObject
) -> None:
    whole, confirmed = segment(1, first + again, lambda number: min(number - 1, len(first))), len(segment(1, first))
    at = data.draw(st.integers(confirmed, len(whole) - 1), "place of the wrong byte")
    broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    later = segment(len(first) + 1, again + more, lambda number: number - 1)
    assert replayed(broken, later) == first + again + more


@given(st.lists(bodies, min_size=2, max_size=5))
def test_ignores_records_after_an_unconfirmed_gap(contents: list[bytes]) -> None:
    assert replayed(segment(1, contents[:1]), segment(3, contents[1:])) == contents[:1]


def test_user_bytes_never_count_as_a_record() -> None:
    inside = pack(b"guessed!", 2, 0, b"forged")
    whole = segment(1, [b"one", inside])
    assert replayed(whole[:-1]) == [b"one"]


def test_invalid_records_are_removed_so_that_later_ones_count(tmp_path: Path) -> None:
    with contextlib.closing(JournalDirectory(tmp_path)) as directory:
        whole = segment(1, [b"one", b"two", b"three"])
        directory.segment(1).write_bytes(whole.replace(b"two", b"2.."))
        assert list(directory.bodies()) == [b"one"]
        directory.repair()
        directory.segment(2).write_bytes(segment(2, [b"another two"]))
        assert list(directory.bodies()) == [b"one", b"another two"]


@given(st.lists(bodies, max_size=5), st.lists(bodies, max_size=5), st.data())
def test_directory_recovers_from_any_crash(first: list[bytes], second: list[bytes], data: st.DataObject) -> None:
    """A crash leaves any part of the last segment. The next segment starts after the last valid number."""
    with tempfile.TemporaryDirectory() as name:
        directory = JournalDirectory(Path(name))
        whole = segment(1, first)
        cut = data.draw(st.integers(HEADER_BYTES, len(whole)))
        directory.segment(1).write_bytes(whole[:cut] + data.draw(st.binary(max_size=8)))
        kept = list(directory.bodies())
        assert kept == first[: len(kept)]
        directory.repair()
        directory.segment(2).write_bytes(segment(len(kept) + 1, second))
        assert list(directory.bodies()) == kept + second
        directory.write_snapshot(2, kept, len(kept))
        directory.remove_replaced()
        assert sorted(path.name for path in Path(name).iterdir()) == [
            "lock",
            "segment-00000002.journal",
            "snapshot-00000002.journal",
        ]
        assert list(directory.bodies()) == kept + second
        directory.close()
