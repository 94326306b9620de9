"""Options of calls that share tasks, for `map` and `get`."""

from __future__ import annotations

from scaler.client.options import Options, check_integer
from scaler.errors import UsageError


def why_alone(options: Options, serializer: object) -> str:
    """Return the reason why calls with these options cannot share a task, or "". Limits and serializers apply per
    call."""
    reasons = {
        "retries=0": not options.retries,
        "retry_on": options.retry_on,
        "timeout_seconds": options.timeout_seconds,
        "a serializer of the client": serializer is not None,
    }
    return next((name for name, applies in reasons.items() if applies), "")


def chunk_size_of(given: int | None, why: str) -> int | None:
    """Return the number of calls per task, or None to choose by measurement. why: the reason why each call is a
    separate task, or "".

    Raises UsageError for a size that would have no effect."""
    check_integer("chunk_size", 1 if given is None else given, 1)
    if why and given is not None and given > 1:
        raise UsageError(f"chunk_size is {given}, but with {why}, each call is a task: remove one of the two")
    return 1 if why else given
