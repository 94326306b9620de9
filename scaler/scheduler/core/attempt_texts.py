"""Errors of failed attempts (equal texts merged, last cause first), and limits on attempts that the cluster ends."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaler.grammar import counted
from scaler.protocol.messages import MAX_BATCH_BYTES, Spec
from scaler.scheduler.core.state import AttemptErrors

MAX_INPUT_BYTES = MAX_BATCH_BYTES // 2
"""Maximum total bytes of one task's inputs, which travel in one message."""
TOO_MUCH_INPUT = (
    f"the task's inputs together exceed MAX_INPUT_BYTES = {MAX_INPUT_BYTES}: "
    "pass fewer inputs, or combine their values in steps"
).encode()
PROCESSOR_DIED = "the processor that ran the task died: "
_ATTEMPT = re.compile(r"attempt (\d+)((?: on |, alone).*?)?: (.*)", re.DOTALL)


def together(texts: Sequence[str]) -> str:
    """Merge the errors of attempts. Each has the form `attempt 2 on WORKER: WHAT`."""
    return "\n".join(f"{', '.join(map(_named, places))}: {what}" for what, places in _grouped(texts).items())


def at_limit(texts: Sequence[str], attempts: int, option: str, limit: int) -> str:
    """Return why a task is not retried: the last cause, the number of attempts, and all errors if they differ."""
    groups = _grouped(texts)
    last = _ATTEMPT.fullmatch(texts[-1])
    cause, _, details = (texts[-1] if last is None else last[3]).partition("\n")
    where = ""
    rest = together(texts)
    if last is not None and len(groups) == 1 and len(places := next(iter(groups.values()))) == 1:
        where, rest = places[0][0], details
    doubt = "; it may have run" if limit == 0 else ""
    first = f"{cause.removeprefix(PROCESSOR_DIED)}, {counted(attempts, 'attempt')}{where}, {option}={limit}{doubt}"
    return f"{first}\n{rest}" if rest else first


_Place = tuple[str, list[str]]


def _grouped(texts: Sequence[str]) -> dict[str, list[_Place]]:
    groups: dict[str, list[_Place]] = {}
    for text in texts:
        found = _ATTEMPT.fullmatch(text)
        number, where, what = found.groups("") if found is not None else ("", "", text)
        known = groups.setdefault(what, [])
        if known and known[-1][0] == where:
            known[-1][1].append(number)
        else:
            known.append((where, [number]))
    return groups


def _named(place: _Place) -> str:
    where, numbers = place
    if len(numbers) == 1:
        return f"attempt {numbers[0]}{where}"
    return f"attempts {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}{where}"


MAX_AT_TIME_LIMIT = 3
"""Attempts that may end at a unit's time limit before the task fails."""
MAX_INTERRUPTED = 10
"""Attempts that the cluster may end, for any reason, before the task fails. A higher `losses` raises both limits."""
MINUTE_SECONDS = 60.0


def interrupt(
    errors: AttemptErrors, spec: Spec, error: str, *, ran_seconds: float, limit_seconds: float
) -> tuple[str, str]:
    """Record that the cluster ended an attempt: a unit's time limit, a spot notice, or an administrator.

    Such attempts are not charged. A task that outlasts the units would restart forever, so it fails after a few
    attempts. The error compares its run time with the limit.

    Returns the attempt's error, and the reason that the task fails (empty: retry).
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
        return error, f"{ended}, and {needs}: use units that run longer, or split the task"
    limit = time_limit_text(limit_seconds)
    advice = "raise the time limit of units (slurm_time_minutes), or split the task"
    return error, f"{ended} at the time limit of its unit ({limit}), and {needs}: {advice}"


def time_limit_text(seconds: float) -> str:
    """Return a time limit as text, rounded to whole minutes because the measured limit is a few seconds off."""
    minutes = round(seconds / MINUTE_SECONDS)
    return counted(minutes, "minute") if minutes else f"{seconds:.0f} s"
