"""Buffers keep head and tail, and count the omitted part, however the text arrives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.head_tail import HeadTailBuffer

pieces = st.lists(st.binary(max_size=40), max_size=10)


@given(pieces, st.integers(1, 20), st.integers(1, 20))
def test_keeps_head_and_tail_and_counts_the_rest(texts: list[bytes], head_bytes: int, tail_bytes: int) -> None:
    buffer = HeadTailBuffer(head_bytes, tail_bytes)
    for text in texts:
        buffer.add(text)
    whole = b"".join(texts)
    if len(whole) <= head_bytes + tail_bytes:
        assert (buffer.text(), buffer.truncated) == (whole, 0)
    else:
        truncated = len(whole) - head_bytes - tail_bytes
        line = b"\n... %d bytes left out ...\n" % truncated
        assert buffer.text() == whole[:head_bytes] + line + whole[-tail_bytes:]
        assert (buffer.truncated, len(buffer)) == (truncated, head_bytes + tail_bytes)


@given(pieces, pieces, st.integers(1, 20), st.integers(1, 20))
def test_nested_buffer_counts_all_omitted_bytes(
    early: list[bytes], late: list[bytes], inner_bytes: int, outer_bytes: int
) -> None:
    outer = HeadTailBuffer(outer_bytes, outer_bytes)
    for texts in (early, late):
        inner = HeadTailBuffer(inner_bytes, inner_bytes)
        for text in texts:
            inner.add(text)
        for truncated, text in inner.segments():
            outer.add(text, truncated)
    whole = b"".join(early + late)
    assert len(outer) + outer.truncated == len(whole)
    head, *rest = (
        outer.text().split(b"\n... %d bytes left out ...\n" % outer.truncated) if outer.truncated else [outer.text()]
    )
    assert whole.startswith(head)
    assert not rest or whole.endswith(rest[-1])


def test_empty_input_has_no_segments() -> None:
    assert HeadTailBuffer(4, 4).segments() == []
    gap = HeadTailBuffer(4, 4)
    gap.add(b"", truncated=7)
    assert gap.segments() == [(7, b"")]
