"""Attempts that the cluster ends: at the time limit of a unit, by a spot notice, by an administrator. Pure.

They are nobody's fault, and charged to nobody. But a task that takes longer than units live would start again for ever,
and be paid for. So it fails after a few such attempts, with what it needs and what it got.
"""

from __future__ import annotations

from scaler.grammar import counted
from scaler.protocol.messages import Spec
from scaler.scheduler.core.state import AttemptErrors

MAX_AT_TIME_LIMIT = 3
"""Attempts that end at the time limit of their unit: the next one would, too."""
MAX_INTERRUPTED = 10
"""Attempts that the cluster ends for any reason. A task that allows more losses of its workers allows more of both."""
MINUTE_SECONDS = 60.0


def interrupt(
    errors: AttemptErrors, spec: Spec, error: str, *, ran_seconds: float, limit_seconds: float
) -> tuple[str, str]:
    """Note that the cluster has ended an attempt. Returns its error, and why the task fails; empty when it runs again.

    error: what has ended. ran_seconds: how long the attempt had run at least. limit_seconds: time limit of its unit, if
    the attempt ended there; otherwise 0.
    """
    errors.uncharged += 1
    errors.interrupted += 1
    errors.at_time_limit += bool(limit_seconds)
    errors.longest_seconds = max(errors.longest_seconds, ran_seconds)
    most = max(MAX_AT_TIME_LIMIT if limit_seconds else MAX_INTERRUPTED, spec.max_losses)
    count = errors.at_time_limit if limit_seconds else errors.interrupted
    error = f"{error} when the task had run for {ran_seconds:.0f} s ({count} of {most} such attempts)"
    if count < most:
        return error, ""
    ended = f"the cluster ended {counted(count, 'attempt')} at the task"
    needs = f"the task runs for more than {max(errors.longest_seconds, spec.expected_seconds):.0f} s"
    if not limit_seconds:
        return error, f"{ended}, and {needs}: run it where units live longer, or split it"
    limit = time_limit_text(limit_seconds)
    advice = "raise the time limit of units (slurm_time_minutes), or split the task"
    return error, f"{ended} at the time limit of its unit ({limit}), and {needs}: {advice}"


def time_limit_text(seconds: float) -> str:
    """Return a time limit in words. Limits are whole minutes, and are known to a few seconds."""
    minutes = round(seconds / MINUTE_SECONDS)
    return counted(minutes, "minute") if minutes else f"{seconds:.0f} s"
