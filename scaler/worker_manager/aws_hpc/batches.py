"""Which calls go together into one job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaler.worker.call import Call
from scaler.worker.executor import CallKey
from scaler.worker_manager.aws_hpc.bundle import pack_bundle

MAX_CALLS = 10_000
"""Of an array job. Source: service quotas of AWS Batch."""
MAX_TOGETHER_BYTES = 64 * 1024**2
"""Calls that are larger together are submitted apart, so that they need not all be in memory twice."""
MAX_BYTES = 5 * 1024**3
"""Of one PutObject. Source: the user guide of S3."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One job: the children of an array, or a plain job of a lone call. repeat: none of them may run only once."""

    keys: Sequence[CallKey]
    data: bytes
    repeat: bool

    @property
    def is_too_large(self) -> bool:
        """Tell whether S3 would not take it."""
        return len(self.data) > MAX_BYTES


def batches_of(calls: Sequence[tuple[Call, bytes]]) -> Iterator[Batch]:
    """Return all calls in as few batches as can be. Those that may run once only are apart: Batch repeats others."""
    for repeat in (True, False):
        group: list[tuple[Call, bytes]] = []
        size = 0
        for call, data in calls:
            if call.once is repeat:
                continue
            if group and (len(group) == MAX_CALLS or size + len(data) > MAX_TOGETHER_BYTES):
                yield _batch(group, repeat)
                group, size = [], 0
            group.append((call, data))
            size += len(data)
        if group:
            yield _batch(group, repeat)


def _batch(group: Sequence[tuple[Call, bytes]], repeat: bool) -> Batch:
    return Batch([call.key for call, _ in group], pack_bundle([data for _, data in group]), repeat)
