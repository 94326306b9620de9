"""Batches that grew too large come apart between tasks, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import dataclasses
from itertools import chain

import pytest

from scaler.protocol import messages as m
from scaler.protocol.batches import split_attempts, split_done, split_finished, split_ids, split_run, split_submit
from scaler.protocol.codec import encode

SPEC = m.Spec(function=bytes(16), name="first")
OTHER = m.Spec(function=bytes(16), name="second")


def ids(first: int, last: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(first, last + 1)]


def tasks(spec: m.Spec, first: int, last: int, size: int = 1_000) -> m.TaskGroup:
    names = ids(first, last)
    return m.TaskGroup(spec, names, [name + bytes(size) for name in names])


def all_ids(parts: list[m.Submit]) -> list[bytes]:
    return [identifier for part in parts for group in part.groups for identifier in group.ids]


def test_what_fits_stays_as_it_is() -> None:
    submit = m.Submit([(bytes(16), b"f")], [tasks(SPEC, 1, 100)], 5)
    run = m.Run([], [m.RunGroup(SPEC, ids(1, 1), [1], [b""])])
    done = m.Done(ids(1, 1), [1], [0], [b""], [1])
    assert split_submit(submit)[0] is submit
    assert split_run(run)[0] is run
    assert split_done(done)[0] is done
    assert split_submit(m.Submit([], [], 7)) == [m.Submit([], [], 7)]
    assert split_done(m.Done([], [], [], [], [])) == [m.Done([], [], [], [], [])]


def test_a_large_submit_comes_apart_near_the_size_asked_for() -> None:
    whole = m.Submit([], [tasks(SPEC, 1, 50), tasks(OTHER, 51, 300), tasks(SPEC, 301, 310)])
    parts = split_submit(whole, 50_000)
    assert all_ids(parts) == all_ids([whole])
    for part in parts:
        assert len(encode(part)) <= 50_000
        for group in part.groups:
            assert [payload[:16] for payload in group.payloads] == group.ids
    assert sum(len(encode(part)) > 40_000 for part in parts) >= len(parts) - 1
    names = [group.spec.name for part in parts for group in part.groups]
    assert [name for name, before in zip(names, ["", *names], strict=False) if name != before] == [
        "first",
        "second",
        "first",
    ]


def test_definitions_come_first_and_what_was_seen_comes_last() -> None:
    definitions = [(identifier, bytes(10_000)) for identifier in ids(1, 12)]
    parts = split_submit(m.Submit(definitions, [tasks(SPEC, 1, 100)], 9), 50_000)
    assert list(chain.from_iterable(part.definitions for part in parts)) == definitions
    last = max(index for index, part in enumerate(parts) if part.definitions)
    assert not any(part.groups for part in parts[:last])
    assert [part.seen for part in parts] == [0] * (len(parts) - 1) + [9]
    assert all(len(encode(part)) < 55_000 for part in parts)


def test_a_task_is_never_cut_however_large_it_is() -> None:
    parts = split_submit(m.Submit([], [tasks(SPEC, 1, 3, size=9_000)]), 1_000)
    assert [len(part.groups[0].ids) for part in parts] == [1, 1, 1]


def test_references_stay_with_their_tasks() -> None:
    group = tasks(SPEC, 1, 100)
    group.references = [(identifier[::-1],) for identifier in group.ids]
    parts = split_submit(m.Submit([], [group]), 10_000)
    assert len(parts) > 5
    for part in parts:
        for piece in part.groups:
            assert piece.references == [(identifier[::-1],) for identifier in piece.ids]


def test_no_task_comes_before_the_tasks_that_it_references() -> None:
    # A chain whose links alternate between two groups, the later half of each link in the other group.
    names = ids(1, 200)
    rows: list[tuple[bytes, ...]] = [(), *((name,) for name in names[:-1])]
    groups = [
        m.TaskGroup(spec, names[start::2], [bytes(1_000)] * 100, rows[start::2])
        for start, spec in ((0, SPEC), (1, OTHER))
    ]
    parts = split_submit(m.Submit([], groups), 20_000)
    known: set[bytes] = set()
    for part in parts:
        known.update(all_ids([part]))
        assert known.issuperset(chain.from_iterable(chain.from_iterable(group.references for group in part.groups)))
        assert len(encode(part)) <= 20_000
    assert sorted(all_ids(parts)) == names


def test_tasks_that_await_each_other_are_passed_on_for_the_scheduler_to_judge() -> None:
    group = tasks(SPEC, 1, 50)
    group.references = [(group.ids[(index + 1) % 50],) for index in range(50)]
    assert sorted(all_ids(split_submit(m.Submit([], [group]), 10_000))) == group.ids


def test_a_large_run_comes_apart_with_attempts_and_inputs() -> None:
    names = ids(1, 100)
    inputs: list[tuple[bytes, ...]] = [(name, bytes(500)) for name in names]
    run = m.Run([(bytes(16), b"f")], [m.RunGroup(SPEC, names, list(range(1, 101)), names, inputs)])
    parts = split_run(run, 10_000)
    assert [part.definitions for part in parts] == [run.definitions] + [[]] * (len(parts) - 1)
    groups = [part.groups[0] for part in parts]
    assert list(chain.from_iterable(group.ids for group in groups)) == names
    for group in groups:
        assert group.attempts == [int.from_bytes(name, "big") for name in group.ids]
        assert group.inputs == [(name, bytes(500)) for name in group.ids]
    assert all(len(encode(part)) <= 10_000 for part in parts)


@pytest.mark.parametrize("profiled", [False, True])
def test_results_come_apart_with_all_their_columns(profiled: bool) -> None:
    names, numbers = ids(1, 100), list(range(1, 101))
    profile = [numbers, numbers] if profiled else [[], []]
    payloads = [bytes(number * 10) for number in numbers]
    done = m.Done(names, numbers, [0] * 100, payloads, numbers, *profile)
    finished = m.Finished(0, names, [0] * 100, payloads, numbers, *profile)
    for parts in (split_done(done, 10_000), split_finished(finished, 7, 10_000)):
        assert len(parts) > 4
        assert all(len(encode(part)) <= 10_000 for part in parts)
        for field in dataclasses.fields(parts[0]):
            if field.name != "number":
                whole = list(chain.from_iterable(getattr(part, field.name) for part in parts))
                assert whole == getattr(done, field.name)
    assert [part.number for part in split_finished(finished, 7, 10_000)] == list(range(7, 7 + len(parts)))
    assert split_finished(finished, 7)[0] == dataclasses.replace(finished, number=7)


def test_lists_of_ids_come_apart_before_they_reach_the_limit_of_control_messages() -> None:
    many = ids(1, 100_000)
    for whole in (m.Cancel(many), m.Release(many), m.ForgetObjects(many)):
        parts = split_ids(whole)
        assert list(chain.from_iterable(part.ids for part in parts)) == many
        assert all(len(encode(part)) <= m.MAX_CONTROL_BYTES for part in parts)
    recall = m.Recall(many, [3] * len(many), True)
    recalls = split_attempts(recall)
    assert list(chain.from_iterable(part.ids for part in recalls)) == many
    assert all(part.kill and len(encode(part)) <= m.MAX_CONTROL_BYTES for part in recalls)
    returned = split_attempts(m.Returned(ids(1, 5), [1, 2, 3, 4, 5], [True, False] * 2 + [True]), 2)
    assert [part.started for part in returned] == [[True, False], [True, False], [True]]
    suspended = split_attempts(m.Suspended(ids(1, 3), [1, 2, 3], [True, False, True]), 2)
    assert [part.attempts for part in suspended] == [[1, 2], [3]]
