"""Excerpts keep the beginning and the end, and know how much is missing, whatever way a text came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.excerpts import Excerpt

pieces = st.lists(st.binary(max_size=40), max_size=10)


@given(pieces, st.integers(1, 20), st.integers(1, 20))
def test_the_beginning_and_the_end_are_kept_and_the_rest_is_counted(
    texts: list[bytes], head_bytes: int, tail_bytes: int
) -> None:
    excerpt = Excerpt(head_bytes, tail_bytes)
    for text in texts:
        excerpt.add(text)
    whole = b"".join(texts)
    if len(whole) <= head_bytes + tail_bytes:
        assert (excerpt.text(), excerpt.cut) == (whole, 0)
    else:
        cut = len(whole) - head_bytes - tail_bytes
        line = b"\n... %d bytes left out ...\n" % cut
        assert excerpt.text() == whole[:head_bytes] + line + whole[-tail_bytes:]
        assert (excerpt.cut, len(excerpt)) == (cut, head_bytes + tail_bytes)


@given(pieces, pieces, st.integers(1, 20), st.integers(1, 20))
def test_an_excerpt_of_excerpts_knows_how_much_is_missing_in_all(
    early: list[bytes], late: list[bytes], inner_bytes: int, outer_bytes: int
) -> None:
    outer = Excerpt(outer_bytes, outer_bytes)
    for texts in (early, late):
        inner = Excerpt(inner_bytes, inner_bytes)
        for text in texts:
            inner.add(text)
        for lost, text in inner.pieces():
            outer.add(text, lost)
    whole = b"".join(early + late)
    assert len(outer) + outer.cut == len(whole)
    head, *rest = outer.text().split(b"\n... %d bytes left out ...\n" % outer.cut) if outer.cut else [outer.text()]
    assert whole.startswith(head)
    assert not rest or whole.endswith(rest[-1])


def test_of_nothing_there_are_no_pieces() -> None:
    assert Excerpt(4, 4).pieces() == []
    gap = Excerpt(4, 4)
    gap.add(b"", lost=7)
    assert gap.pieces() == [(7, b"")]
