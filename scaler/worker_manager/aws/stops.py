"""Stops units one call each, several at once, and again where the service was too busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from scaler.worker_manager.aws.errors import AwsError

STOP_RETRY_SECONDS = 8.0
"""For so long a stop is tried again that the service was too busy for."""
FIRST_PAUSE_SECONDS = 0.25
STOPS_AT_ONCE = 8

TryStop = Callable[[str], Callable[[str], None] | AwsError]
"""Asks the service to stop a unit. Returns how to take note of what it did, or why it did not.

It is called in several threads at once; what it returns is called in the one that stops.
"""


class Stops:
    """Remembers in `refused` the units that the service has not agreed to stop."""

    def __init__(self, try_stop: TryStop) -> None:
        self._try_stop = try_stop
        self.refused: set[str] = set()

    def stop(self, unit_ids: Sequence[str]) -> None:
        """Stop units, for as long as `STOP_RETRY_SECONDS`. Raises the first AwsError that stands in the end."""
        left = list(unit_ids)
        deadline = time.monotonic() + STOP_RETRY_SECONDS
        pause = FIRST_PAUSE_SECONDS
        errors: list[AwsError] = []
        with ThreadPoolExecutor(STOPS_AT_ONCE, "stop") as pool:
            while left:
                failed: dict[str, AwsError] = {}
                for unit_id, outcome in zip(left, pool.map(self._try_stop, left), strict=True):
                    if isinstance(outcome, AwsError):
                        failed[unit_id] = outcome
                    else:
                        outcome(unit_id)
                self.refused = (self.refused - set(left)) | set(failed)
                is_over = time.monotonic() + pause >= deadline
                errors += [error for error in failed.values() if is_over or not _may_pass(error)]
                left = [unit_id for unit_id, error in failed.items() if _may_pass(error) and not is_over]
                if left:
                    time.sleep(pause)
                    pause *= 2
        if errors:
            raise errors[0]


def _may_pass(error: AwsError) -> bool:
    return error.kind in ("throttled", "unanswered", "broken")
