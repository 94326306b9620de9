"""`persist` of clients."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.client.future import ScalerFuture
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.client.task_future import TaskFuture
from scaler.errors import UsageError


@hiding_frames_of_methods()
class CopyCalls(TaskCalls):
    def persist(self, futures: ScalerFuture | Iterable[ScalerFuture]) -> None:
        """Copy results into the object storage, where they survive the loss of their hosts.

        Returns at once. Each result is copied as soon as it exists. The copy is kept as long as its future. Starts no
        task, unlike Dask's `persist`. Results of up to 32 KiB are sent in messages and need no copy.

        Args:
            futures: one or several futures of this client.

        Raises:
            UsageError: An argument is not a future of this client.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        checked: list[TaskFuture] = []
        for future in [futures] if isinstance(futures, ScalerFuture) else futures:
            if not isinstance(future, TaskFuture) or future._owner is not self._futures:
                what = "a future of another client" if isinstance(future, ScalerFuture) else "not a future"
                raise UsageError(f"{future!r} is {what}: persist takes futures of this client")
            checked.append(future)
        for future in checked:
            future.is_persisted = True  # before the check below: a result stored from now on is copied at once
        if stored := [future.stored for future in checked if future.stored is not None]:
            self._loop.persist(stored)
