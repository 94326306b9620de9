"""Merging profiles preserves time and samples in any order, and bounds their size."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.stack_profile import MAX_DEPTH, MAX_STACKS, StackProfile, label, read_document, read_json

FRAMES = st.sampled_from([f"f{number} (m/a.py:{number})" for number in range(6)])
STACKS = st.lists(FRAMES, max_size=5).map(tuple)
SAMPLES = st.lists(st.tuples(STACKS, st.integers(0, 10**6)), max_size=30)


def profile_of(samples: list[tuple[tuple[str, ...], int]]) -> StackProfile:
    made = StackProfile()
    for stack, microseconds in samples:
        made.add(stack, microseconds)
    return made


def merged(*profiles: StackProfile) -> StackProfile:
    made = StackProfile()
    for each in profiles:
        made.merge(each)
    return made


@given(st.lists(SAMPLES, min_size=3, max_size=3))
def test_merging_is_associative_and_commutative(samples: list[list[tuple[tuple[str, ...], int]]]) -> None:
    one, two, three = map(profile_of, samples)
    left, right = merged(merged(one, two), three), merged(three, merged(two, one))
    assert left.own_us == right.own_us == profile_of(list(chain(*samples))).own_us
    assert left.samples == right.samples == sum(map(len, samples))


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40), st.integers(0, 1000)), max_size=1500))
def test_history_is_bounded_without_gaps(rows: list[tuple[int, int, int]]) -> None:
    given_us, made = 0, StackProfile()
    for number, depth, microseconds in [*rows, *((each, 3, 1) for each in range(MAX_STACKS + 50))]:
        made.add((*(f"d{level}" for level in range(depth)), f"f{number}"), microseconds)
        given_us += microseconds
        assert len(made.own_us) <= MAX_STACKS
    assert made.total_us == given_us
    assert made.samples == len(rows) + MAX_STACKS + 50
    both = merged(made, made)
    assert (len(both.own_us) <= MAX_STACKS, both.total_us, both.samples) == (True, 2 * given_us, 2 * made.samples)


def test_lightest_stacks_are_folded_into_their_callers() -> None:
    made = StackProfile()
    made.add(("main", "hot"), 10**9)
    for number in range(MAX_STACKS):
        made.add(("main", f"cold{number}"), 1)
    assert made.own_us["main", "hot"] == 10**9
    assert made.own_us["main",] >= MAX_STACKS // 4
    assert made.total_us == 10**9 + MAX_STACKS


@given(SAMPLES)
def test_profile_document_round_trips(samples: list[tuple[tuple[str, ...], int]]) -> None:
    made = profile_of(samples)
    read, _ = read_json(json.dumps(made.document()).encode())
    assert (read.own_us, read.samples) == (made.own_us, made.samples)


@given(SAMPLES)
def test_self_times_add_up_and_recursion_counts_once(samples: list[tuple[tuple[str, ...], int]]) -> None:
    made = profile_of(samples)
    frames = made.hottest(1000)
    assert sum(each.own_us for each in frames) == sum(us for stack, us in made.own_us.items() if stack)
    assert all(each.own_us <= each.total_us <= made.total_us for each in frames)
    assert [each.own_us for each in frames] == sorted((each.own_us for each in frames), reverse=True)


def test_other_programs_can_read_the_files() -> None:
    made = profile_of([(("a", "b"), 30), (("a", "c"), 10), (("a", "b"), 5)])
    assert made.collapsed() == "a;b 35\na;c 10\n"
    assert made.table("job", 5).splitlines()[2].split() == ["77.8", "%", "77.8", "%", "b"]


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b"no json",
        b"[" * 100_000,
        b'{"samples": -1, "frames": [], "stacks": []}',
        b'{"samples": 1, "frames": [1], "stacks": []}',
        b'{"samples": 1, "frames": ["a"], "stacks": [[5, 1]]}',
        b'{"samples": 1, "frames": ["a"], "stacks": [[5, -1]]}',
        b'{"samples": 1, "frames": ["a"], "stacks": [[true, 0]]}',
        b'{"samples": 1, "frames": ["a"], "stacks": [[]]}',
        json.dumps({"samples": 1, "frames": ["a"], "stacks": [[1] + [0] * (MAX_DEPTH + 1)]}).encode(),
        json.dumps({"samples": 1, "frames": ["a"], "stacks": [[1, 0]] * (MAX_STACKS + 1)}).encode(),
    ],
)
def test_invalid_profile_raises_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (also any error from json)
        read_json(text)


@given(st.text(max_size=400))
def test_label_is_one_line_without_separators(text: str) -> None:
    made = label(text)
    assert len(made) <= 160
    assert ";" not in made
    assert made.isprintable()
    read = read_document({"samples": 1, "frames": [text], "stacks": [[7, 0]]})
    assert read.own_us == {(made,): 7}
