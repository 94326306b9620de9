"""How messages about many tasks look on the wire. By hand, and in columns: this is the hot path of every component.

Fields at their default are left out. Every function raises ValueError for what the protocol does not allow; writing
raises LimitError for more entries than one message may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaler.protocol import columns as c
from scaler.protocol.kinds import check_seconds, read_needs, write_needs
from scaler.protocol.messages import (
    Done,
    Finished,
    Printed,
    Recall,
    Returned,
    Run,
    RunGroup,
    Spec,
    Submit,
    Suspended,
    TaskGroup,
)


def _write_spec(builder: Any, spec: Spec) -> None:
    builder.function = c.check_id(spec.function)
    if spec.serializer:
        builder.serializer = c.check_id(spec.serializer)
    if spec.needs:
        builder.needs = write_needs(spec.needs)
    if spec.priority:
        builder.priority = spec.priority
    if spec.retries != 3:
        builder.retries = spec.retries
    if spec.retry_on:
        builder.retryOn = spec.retry_on
    if spec.timeout_seconds:
        builder.timeoutSeconds = check_seconds(spec.timeout_seconds)
    if spec.profiling:
        builder.profiling = True
    if spec.stream_output:
        builder.streamOutput = True
    if not spec.deliver:
        builder.deliver = False
    if spec.name:
        builder.name = spec.name
    if spec.parent:
        builder.parent = c.check_id(spec.parent)


def _read_spec(reader: Any) -> Spec:
    return Spec(
        c.check_id(reader.function),
        c.check_optional_id(reader.serializer),
        read_needs(reader.needs),
        reader.priority,
        reader.retries,
        reader.retryOn,
        check_seconds(reader.timeoutSeconds),
        reader.profiling,
        reader.streamOutput,
        reader.deliver,
        reader.name,
        c.check_optional_id(reader.parent),
    )


def _write_functions(builder: Any, functions: Sequence[tuple[bytes, bytes]]) -> None:
    if functions:
        entries = builder.init("functions", c.limit_entries("functions", len(functions)))
        for entry, (identifier, payload) in zip(entries, functions, strict=True):
            entry.id = c.check_id(identifier)
            entry.payload = payload


def _read_functions(reader: Any) -> list[tuple[bytes, bytes]]:
    c.check_entries("functions", len(reader))
    return [(c.check_id(entry.id), entry.payload) for entry in reader]


def _write_payloads(builder: Any, payloads: list[bytes], count: int) -> None:
    c.check_count("payloads", len(payloads), count)
    builder.payloads = payloads


def _read_payloads(reader: Any, count: int) -> list[bytes]:
    # Counted before any is read: a list on the wire may claim more entries than memory can hold.
    c.check_count("payloads", len(reader), count)
    return list(reader)


def write_submit(builder: Any, submit: Submit) -> None:
    _write_functions(builder, submit.functions)
    builder.acknowledged = submit.acknowledged
    groups = submit.groups
    for entry, group in zip(builder.init("groups", c.limit_entries("groups", len(groups))), groups, strict=True):
        count = len(group.ids)
        _write_spec(entry.init("spec"), group.spec)
        entry.ids = c.join_ids(group.ids)
        _write_payloads(entry, group.payloads, count)
        if group.references:
            entry.referenceCounts = c.pack_counts(group.references, count)
            entry.references = c.join_ids(c.flatten(group.references))


def read_submit(reader: Any) -> Submit:
    groups = reader.groups
    c.check_entries("groups", len(groups))
    return Submit(_read_functions(reader.functions), [_read_task_group(group) for group in groups], reader.acknowledged)


def _read_task_group(reader: Any) -> TaskGroup:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    counts = c.unpack_counts(reader.referenceCounts, count)
    references = c.split_ids(reader.references)
    c.check_rows("references", counts, len(references))
    return TaskGroup(
        _read_spec(reader.spec), ids, _read_payloads(reader.payloads, count), c.unflatten(counts, references)
    )


def write_run(builder: Any, run: Run) -> None:
    _write_functions(builder, run.functions)
    groups = run.groups
    for entry, group in zip(builder.init("groups", c.limit_entries("groups", len(groups))), groups, strict=True):
        count = len(group.ids)
        _write_spec(entry.init("spec"), group.spec)
        entry.ids = c.join_ids(group.ids)
        entry.attempts = c.pack_attempts(group.attempts, count)
        _write_payloads(entry, group.payloads, count)
        if group.inputs:
            entry.inputCounts = c.pack_counts(group.inputs, count)
            entry.inputs = c.flatten(group.inputs)


def read_run(reader: Any) -> Run:
    groups = reader.groups
    c.check_entries("groups", len(groups))
    return Run(_read_functions(reader.functions), [_read_run_group(group) for group in groups])


def _read_run_group(reader: Any) -> RunGroup:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    counts = c.unpack_counts(reader.inputCounts, count)
    inputs = reader.inputs
    c.check_rows("inputs", counts, len(inputs))
    return RunGroup(
        _read_spec(reader.spec),
        ids,
        c.unpack_attempts(reader.attempts, count),
        _read_payloads(reader.payloads, count),
        c.unflatten(counts, inputs),
    )


def write_done(builder: Any, done: Done) -> None:
    count = len(done.ids)
    builder.ids = c.join_ids(done.ids)
    builder.attempts = c.pack_attempts(done.attempts, count)
    builder.outcomes = c.pack_outcomes(done.outcomes, count, c.ANY_OUTCOME)
    _write_payloads(builder, done.payloads, count)
    _write_profile(builder, done, count)


def read_done(reader: Any) -> Done:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    return Done(
        ids,
        c.unpack_attempts(reader.attempts, count),
        c.unpack_outcomes(reader.outcomes, count, c.ANY_OUTCOME),
        _read_payloads(reader.payloads, count),
        c.unpack_durations(reader.durationUs, count),
        c.unpack_profile(reader.cpuUs, count),
        c.unpack_profile(reader.peakBytes, count),
    )


def write_finished(builder: Any, finished: Finished) -> None:
    count = len(finished.ids)
    builder.number = finished.number
    builder.ids = c.join_ids(finished.ids)
    builder.outcomes = c.pack_outcomes(finished.outcomes, count, c.FINAL_OUTCOMES)
    _write_payloads(builder, finished.payloads, count)
    _write_profile(builder, finished, count)


def read_finished(reader: Any) -> Finished:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    return Finished(
        reader.number,
        ids,
        c.unpack_outcomes(reader.outcomes, count, c.FINAL_OUTCOMES),
        _read_payloads(reader.payloads, count),
        c.unpack_durations(reader.durationUs, count),
        c.unpack_profile(reader.cpuUs, count),
        c.unpack_profile(reader.peakBytes, count),
    )


def _write_profile(builder: Any, batch: Done | Finished, count: int) -> None:
    builder.durationUs = c.pack_durations(batch.duration_us, count)
    if batch.cpu_us:
        builder.cpuUs = c.pack_profile(batch.cpu_us, count)
    if batch.peak_bytes:
        builder.peakBytes = c.pack_profile(batch.peak_bytes, count)


def write_recall(builder: Any, recall: Recall) -> None:
    builder.ids = c.join_ids(recall.ids)
    builder.attempts = c.pack_attempts(recall.attempts, len(recall.ids))
    builder.kill = recall.kill


def read_recall(reader: Any) -> Recall:
    ids = c.split_ids(reader.ids)
    return Recall(ids, c.unpack_attempts(reader.attempts, len(ids)), reader.kill)


def write_returned(builder: Any, returned: Returned) -> None:
    count = len(returned.ids)
    builder.ids = c.join_ids(returned.ids)
    builder.attempts = c.pack_attempts(returned.attempts, count)
    builder.started = c.pack_flags(returned.started, count)


def read_returned(reader: Any) -> Returned:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    return Returned(ids, c.unpack_attempts(reader.attempts, count), c.unpack_flags(reader.started, count))


def write_suspended(builder: Any, message: Suspended) -> None:
    count = len(message.ids)
    builder.ids = c.join_ids(message.ids)
    builder.attempts = c.pack_attempts(message.attempts, count)
    builder.suspended = c.pack_flags(message.suspended, count)


def read_suspended(reader: Any) -> Suspended:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    return Suspended(ids, c.unpack_attempts(reader.attempts, count), c.unpack_flags(reader.suspended, count))


def write_printed(builder: Any, message: Printed) -> None:
    count = len(message.ids)
    builder.ids = c.join_ids(message.ids)
    builder.areStderr = c.pack_flags(message.are_stderr, count)
    builder.truncatedBytes = c.pack_profile(message.truncated_bytes, count)
    c.check_count("texts", len(message.texts), count)
    builder.texts = message.texts


def read_printed(reader: Any) -> Printed:
    ids = c.split_ids(reader.ids)
    count = len(ids)
    lost = c.unpack_profile(reader.truncatedBytes, count)
    c.check_count("texts", len(reader.texts), count)
    return Printed(ids, c.unpack_flags(reader.areStderr, count), lost, list(reader.texts))
