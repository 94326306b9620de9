"""The call whose function and arguments this process is loading.

A class pickled by value is one object per process. Its attributes are those in the first pickle of the call that
contains it: the function's, the arguments', then a result's. Reading results outside calls never changes classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary


class _Loading:
    def __init__(self) -> None:
        self.number = 0
        self.is_active = False
        self._set_in: WeakKeyDictionary[type, int] = WeakKeyDictionary()
        """The call that last set the attributes of each class; 0: none."""

    def __enter__(self) -> None:
        """Start loading a call."""
        self.number += 1
        self.is_active = True

    def __exit__(self, *_: object) -> None:
        self.is_active = False

    def note(self, classes: Iterable[type]) -> None:
        for each in classes:
            self._set_in[each] = self.number

    def know(self, cls: type) -> None:
        """Record that the process itself has set the attributes of a class."""
        self._set_in.setdefault(cls, 0)

    def takes(self, cls: type) -> bool:
        """Return whether the pickle being loaded sets the attributes of a class, and record that it does."""
        if self.would_take(cls):
            self._set_in[cls] = self.number
            return True
        return False

    def would_take(self, cls: type) -> bool:
        known = self._set_in.get(cls)
        return known is None or (self.is_active and known != self.number)


loading = _Loading()
