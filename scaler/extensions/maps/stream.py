"""Pickles of successive values by value. Apart from `values.py`, because most processes never need cloudpickle."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pickle import PickleBuffer

from scaler.serialization.by_value import Pickler


class PickleStream:
    """Pickles successive values, which share only objects outside their pickles."""

    def __init__(self, number_of: Callable[[object], int | None]) -> None:
        """number_of: returns the number of an object outside the pickles, None for any other object."""
        self._file = BytesIO()
        self._buffers: list[PickleBuffer] = []
        self._pickler = Pickler(self._file, 5, buffer_callback=self._keep)
        self._pickler.persistent_id = number_of

    def dumps(self, value: object) -> tuple[bytes, list[PickleBuffer]]:
        self._buffers = []
        self._file.seek(0)
        self._file.truncate()
        self._pickler.clear_memo()
        self._pickler.globals_ref = {}
        self._pickler.dump(value)
        return self._file.getvalue(), self._buffers

    def _keep(self, buffer: PickleBuffer) -> None:
        self._buffers.append(buffer)
