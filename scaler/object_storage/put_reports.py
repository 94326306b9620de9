"""What the object storage tells the scheduler while no host has a store: which large objects it has, in batches.

Then only views read it, and most objects of a task are forgotten before the batch is sent: those are left out. Pure.

Law: an object that was reported and is forgotten afterwards is reported as dropped. A batch may pass, on its way, the
request of the scheduler to forget one of its objects, which the scheduler would otherwise list for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scaler.ids import owner_of

REPORT_SECONDS = 0.1
"""How long a report waits for more."""


class PutReports:
    """Objects that are to be reported, and those that were."""

    def __init__(self, is_here: Callable[[bytes], bool]) -> None:
        """is_here: tells whether the object storage has an object."""
        self._is_here = is_here
        self._put: dict[bytes, int] = {}
        self._reported: set[bytes] = set()
        self._dropped: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._put or self._dropped)

    def put(self, object_id: bytes, size_bytes: int) -> None:
        self._put[object_id] = size_bytes

    def forget(self, ids: Iterable[bytes]) -> None:
        """Note that a peer has asked to forget objects, of which it may not name all."""
        forgotten = [each for each in self._reported.intersection(ids) if not self._is_here(each)]
        self._reported.difference_update(forgotten)
        self._dropped += forgotten

    def forget_owner(self, owner: bytes) -> None:
        """Note that all objects of a client were forgotten."""
        self.forget([each for each in self._reported if owner_of(each) == owner])

    def dropped(self, ids: Iterable[bytes]) -> None:
        """Note that the scheduler learns otherwise that these are not here any more."""
        self._reported.difference_update(ids)

    def restart(self, rows: Iterable[tuple[bytes, int]]) -> None:
        """Begin with a scheduler that knows nothing: these are here."""
        self._put = dict(rows)
        self._reported.clear()
        self._dropped.clear()

    def take(self) -> tuple[list[tuple[bytes, int]], list[bytes]]:
        """Return what has been put, with sizes, and is still here, and what was reported and has been forgotten."""
        put = [row for row in self._put.items() if self._is_here(row[0])]
        dropped, self._dropped = self._dropped, []
        self._put.clear()
        self._reported.update(object_id for object_id, _ in put)
        return put, dropped
