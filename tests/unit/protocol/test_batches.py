"""Oversized batches are split between tasks without losing, duplicating, or reordering any."""

from __future__ import annotations

import dataclasses
from itertools import chain

import pytest

from scaler.protocol import messages as m
from scaler.protocol.codec import encode
from scaler.protocol.messages import split


def ids(first: int, last: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(first, last + 1)]


@pytest.mark.parametrize("profiled", [False, True])
def test_result_batches_are_split_with_all_columns(profiled: bool) -> None:
    names, numbers = ids(1, 100), list(range(1, 101))
    profile = [numbers, numbers] if profiled else [[], []]
    payloads = [bytes(number * 10) for number in numbers]
    done = m.Done(names, numbers, [0] * 100, payloads, numbers, *profile)
    parts = split(done, 10_000)
    assert len(parts) > 4
    assert all(len(encode(part)) <= 10_000 for part in parts)
    for field in dataclasses.fields(done):
        whole = list(chain.from_iterable(getattr(part, field.name) for part in parts))
        assert whole == getattr(done, field.name)


def test_lists_of_ids_are_split_below_the_control_message_limit() -> None:
    many = ids(1, 100_000)
    for whole in (m.Cancel(many), m.Release(many), m.ForgetObjects(many)):
        parts: list[m.Cancel | m.Release | m.ForgetObjects] = split(whole)
        assert list(chain.from_iterable(part.ids for part in parts)) == many
        assert all(len(encode(part)) <= m.MAX_CONTROL_BYTES for part in parts)
    recall = m.Recall(many, [3] * len(many), True)
    recalls = split(recall)
    assert list(chain.from_iterable(part.ids for part in recalls)) == many
    assert all(part.kill and len(encode(part)) <= m.MAX_CONTROL_BYTES for part in recalls)
    returned = split(m.Returned(ids(1, 5), [1, 2, 3, 4, 5], [True, False] * 2 + [True]), max_rows=2)
    assert [part.started for part in returned] == [[True, False], [True, False], [True]]
    suspended = split(m.Suspended(ids(1, 3), [1, 2, 3], [True, False, True]), max_rows=2)
    assert [part.attempts for part in suspended] == [[1, 2], [3]]
