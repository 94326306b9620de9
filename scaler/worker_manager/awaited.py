"""A backend that cannot be made yet, because its service is away or not set up: it is tried again, with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaler.errors import UsageError
from scaler.worker_manager.backend import Backend, BackendError, Capacity, Unit


class AwaitedBackend:
    """A `Backend` without units. Each listing tries to make the real one, and fails with the reason until it is made.

    So a manager is with its scheduler, and monitors show what it waits for, before its service can be asked how large a
    unit is.
    """

    capacity = Capacity(unit_slots=1, max_slots=0, max_units=0)

    def __init__(self, make: Callable[[], Backend], on_made: Callable[[], object]) -> None:
        """make: raises BackendError when the service is away. on_made: called in the thread that lists."""
        self._make = make
        self._on_made = on_made
        self.made: Backend | None = None

    def start(self, count: int) -> list[str]:
        raise BackendError(f"cannot start {count}: the backend is not there yet")

    def stop(self, unit_ids: Sequence[str]) -> None:
        """Do nothing: there are no units."""

    def list(self) -> list[Unit]:
        if self.made is None:
            try:
                self.made = self._make()
            except UsageError as error:
                raise BackendError(str(error)) from error  # of what was found at the service, which may be corrected
            self._on_made()
        return []

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        """Leave the real backend, if there is one, to the next runner."""
