"""Cuts messages that grew too large into several, near SPLIT_BATCH_BYTES each, without ever cutting a task in two.

The parts are to be sent in their order. What fits stays as it is. Sizes are estimates, a little above the truth; a
single task beyond MAX_BATCH_BYTES stays whole, and the codec refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeVar, assert_never

from scaler.ids import ID_BYTES
from scaler.protocol.messages import (
    SPLIT_BATCH_BYTES,
    Cancel,
    Done,
    Finished,
    ForgetObjects,
    Hold,
    Recall,
    Release,
    Returned,
    Run,
    RunGroup,
    Spec,
    Submit,
    Suspended,
    TaskGroup,
    Undefine,
)

IDS_PER_MESSAGE = 32 * 1024
"""Most ids in one message of ids alone: well within MAX_CONTROL_BYTES, and a short turn for whoever receives it."""

_ROW_BYTES = 64
"""A task's id and small integers, the pointer to its payload, and the padding of that to whole words."""
_GROUP_BYTES = 192
_NEED_BYTES = 48
_DEFINITION_BYTES = 64

Definitions = list[tuple[bytes, bytes]]
_Group = TypeVar("_Group", TaskGroup, RunGroup)
_OfIds = TypeVar("_OfIds", bound=Cancel | Hold | Release | Undefine | ForgetObjects)
_OfAttempts = TypeVar("_OfAttempts", Recall, Returned, Suspended)


def split_submit(submit: Submit, size_bytes: int = SPLIT_BATCH_BYTES) -> list[Submit]:
    """Cut a Submit. Definitions go first, and only the last part says what was seen: results are kept until then.

    A task never comes in an earlier part than one that it references (nonsense aside: tasks that await each other).
    """
    if _definition_bytes(submit.definitions) + _groups_bytes(submit.groups, _task_sizes) <= size_bytes:
        return [submit]
    *ahead, first = _split_definitions(submit.definitions, size_bytes)
    used = _definition_bytes(first)
    if _references_own(submit.groups):
        cuts = _cut_graph(submit.groups, used, size_bytes)
    else:
        cuts = _cut_groups(submit.groups, _task_sizes, _task_rows, used, size_bytes)
    parts = [Submit(definitions, []) for definitions in ahead]
    parts += [Submit([], groups) for groups in cuts]
    parts[len(ahead)].definitions = first
    parts[-1].seen = submit.seen
    return parts


def split_run(run: Run, size_bytes: int = SPLIT_BATCH_BYTES) -> list[Run]:
    """Cut a Run. Definitions go first."""
    if _definition_bytes(run.definitions) + _groups_bytes(run.groups, _attempt_sizes) <= size_bytes:
        return [run]
    *ahead, first = _split_definitions(run.definitions, size_bytes)
    parts = [Run(definitions, []) for definitions in ahead]
    cuts = _cut_groups(run.groups, _attempt_sizes, _attempt_rows, _definition_bytes(first), size_bytes)
    parts += [Run([], groups) for groups in cuts]
    parts[len(ahead)].definitions = first
    return parts


def split_done(done: Done, size_bytes: int = SPLIT_BATCH_BYTES) -> list[Done]:
    """Cut a Done."""
    ranges = _ranges(done.payloads, size_bytes)
    if len(ranges) == 1:
        return [done]
    return [
        Done(
            done.ids[rows],
            done.attempts[rows],
            done.outcomes[rows],
            done.payloads[rows],
            done.duration_us[rows],
            done.cpu_us[rows],
            done.peak_bytes[rows],
        )
        for rows in ranges
    ]


def split_finished(finished: Finished, first_number: int, size_bytes: int = SPLIT_BATCH_BYTES) -> list[Finished]:
    """Cut a Finished. The parts are numbered from `first_number` on, whatever number the whole had."""
    return [
        Finished(
            number,
            finished.ids[rows],
            finished.outcomes[rows],
            finished.payloads[rows],
            finished.duration_us[rows],
            finished.cpu_us[rows],
            finished.peak_bytes[rows],
        )
        for number, rows in enumerate(_ranges(finished.payloads, size_bytes), first_number)
    ]


def split_ids(message: _OfIds, most: int = IDS_PER_MESSAGE) -> list[_OfIds]:
    """Cut a message of nothing but ids; each part has at most `most` of them."""
    if len(message.ids) <= most:
        return [message]
    make = type(message)
    return [make(message.ids[start : start + most]) for start in range(0, len(message.ids), most)]


def split_attempts(message: _OfAttempts, most: int = IDS_PER_MESSAGE) -> list[_OfAttempts]:
    """Cut a message about attempts, without their payloads; each part has at most `most` of them."""
    if len(message.ids) <= most:
        return [message]
    ranges = [slice(start, start + most) for start in range(0, len(message.ids), most)]
    match message:
        case Recall(ids, attempts, kill):
            return [Recall(ids[rows], attempts[rows], kill) for rows in ranges]
        case Returned(ids, attempts, started):
            return [Returned(ids[rows], attempts[rows], started[rows]) for rows in ranges]
        case Suspended(ids, attempts, suspended):
            return [Suspended(ids[rows], attempts[rows], suspended[rows]) for rows in ranges]
        case _:
            assert_never(message)


# -- sizes


def _definition_bytes(definitions: Definitions) -> int:
    return sum(len(payload) + _DEFINITION_BYTES for _, payload in definitions)


def _spec_bytes(spec: Spec) -> int:
    needs = sum(len(name) + _NEED_BYTES for name, _ in spec.needs)
    # A character takes at most 4 bytes in UTF-8.
    return _GROUP_BYTES + 4 * len(spec.name) + len(spec.retry_on) + needs


def _task_sizes(group: TaskGroup) -> list[int]:
    sizes = [len(payload) + _ROW_BYTES for payload in group.payloads]
    if group.references:
        return [size + ID_BYTES * len(row) for size, row in zip(sizes, group.references, strict=True)]
    return sizes


def _attempt_sizes(group: RunGroup) -> list[int]:
    sizes = [len(payload) + _ROW_BYTES for payload in group.payloads]
    if group.inputs:
        return [size + sum(map(len, row)) + 16 * len(row) for size, row in zip(sizes, group.inputs, strict=True)]
    return sizes


def _groups_bytes(groups: Sequence[_Group], sizes: Callable[[_Group], list[int]]) -> int:
    return sum(_spec_bytes(group.spec) + sum(sizes(group)) for group in groups)


# -- cutting


def _split_definitions(definitions: Definitions, limit: int) -> list[Definitions]:
    """Return at least one list; all but the last are to be sent before any task."""
    payloads = [payload for _, payload in definitions]
    return [definitions[rows] for rows in _ranges(payloads, limit)]


def _ranges(payloads: Sequence[bytes], limit: int) -> list[slice]:
    """Return the rows of each part, of one part at least."""
    count = len(payloads)
    if sum(map(len, payloads)) + _ROW_BYTES * count <= limit:
        return [slice(0, count)]
    ranges = []
    start = used = 0
    for index, payload in enumerate(payloads):
        size = len(payload) + _ROW_BYTES
        if used + size > limit and index > start:
            ranges.append(slice(start, index))
            start, used = index, 0
        used += size
    ranges.append(slice(start, count))
    return ranges


def _task_rows(group: TaskGroup, rows: slice) -> TaskGroup:
    return TaskGroup(group.spec, group.ids[rows], group.payloads[rows], group.references[rows])


def _attempt_rows(group: RunGroup, rows: slice) -> RunGroup:
    return RunGroup(group.spec, group.ids[rows], group.attempts[rows], group.payloads[rows], group.inputs[rows])


def _cut_groups(
    groups: Sequence[_Group],
    sizes: Callable[[_Group], list[int]],
    take: Callable[[_Group, slice], _Group],
    used: int,
    limit: int,
) -> Iterator[list[_Group]]:
    """Yield the groups of each part; the first part has `used` bytes already."""
    part: list[_Group] = []
    for group in groups:
        opening = _spec_bytes(group.spec)
        used += opening
        start = 0
        for index, size in enumerate(sizes(group)):
            if used + size > limit and (part or index > start):
                if index > start:
                    part.append(take(group, slice(start, index)))
                yield part
                part, start, used = [], index, opening
            used += size
        part.append(take(group, slice(start, len(group.ids))))
    yield part


def _references_own(groups: Sequence[TaskGroup]) -> bool:
    own = set(chain.from_iterable(group.ids for group in groups))
    return any(not own.isdisjoint(row) for group in groups for row in group.references)


def _cut_graph(groups: Sequence[TaskGroup], used: int, limit: int) -> Iterator[list[TaskGroup]]:
    """Yield the groups of each part, of tasks that reference each other across groups."""
    homes = {
        identifier: (group.spec, payload, row)
        for group in groups
        for identifier, payload, row in zip(
            group.ids, group.payloads, group.references or [()] * len(group.ids), strict=True
        )
    }
    part: dict[Spec, TaskGroup] = {}
    for identifier in _referenced_first({identifier: row for identifier, (_, _, row) in homes.items()}):
        spec, payload, row = homes[identifier]
        size = len(payload) + _ROW_BYTES + ID_BYTES * len(row)
        opening = _spec_bytes(spec)
        if part and used + size + (0 if spec in part else opening) > limit:
            yield _closed(part)
            part, used = {}, 0
        if spec not in part:
            part[spec] = TaskGroup(spec, [], [])
            used += opening
        group = part[spec]
        group.ids.append(identifier)
        group.payloads.append(payload)
        group.references.append(row)
        used += size
    yield _closed(part)


def _closed(part: dict[Spec, TaskGroup]) -> list[TaskGroup]:
    for group in part.values():
        if not any(group.references):
            group.references = []
    return list(part.values())


def _referenced_first(references: dict[bytes, tuple[bytes, ...]]) -> Iterator[bytes]:
    """Yield all tasks, each after those that it references."""
    met: set[bytes] = set()
    for root, wanted in references.items():
        if root in met:
            continue
        met.add(root)
        path = [(root, iter(wanted))]
        while path:
            identifier, row = path[-1]
            for needed in row:
                if needed in references and needed not in met:
                    met.add(needed)
                    path.append((needed, iter(references[needed])))
                    break
            else:
                path.pop()
                yield identifier
