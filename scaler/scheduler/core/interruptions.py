"""Attempts ended by the cluster: unit time limits, spot notices, administrators. Pure.

Such attempts are not charged. A task that takes longer than units live would restart forever, so it fails after a few
attempts. The error states the time that it needed and got.
"""

from __future__ import annotations

from scaler.grammar import counted
from scaler.protocol.messages import Spec
from scaler.scheduler.core.state import AttemptErrors

MAX_AT_TIME_LIMIT = 3
"""Attempts ended by a unit's time limit after which the task fails."""
MAX_INTERRUPTED = 10
"""Attempts ended by the cluster for any reason after which the task fails. A higher `losses` raises both limits."""
MINUTE_SECONDS = 60.0


def interrupt(
    errors: AttemptErrors, spec: Spec, error: str, *, ran_seconds: float, limit_seconds: float
) -> tuple[str, str]:
    """Record that the cluster ended an attempt. Returns the attempt's error, and why the task fails (empty: retry).

    error: what ended the attempt. ran_seconds: minimum run time of the attempt. limit_seconds: time limit of its unit
    if that ended the attempt; otherwise 0.
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
    """Return a time limit as text. Limits are whole minutes, known to within a few seconds."""
    minutes = round(seconds / MINUTE_SECONDS)
    return counted(minutes, "minute") if minutes else f"{seconds:.0f} s"
