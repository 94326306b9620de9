"""The call whose function and arguments this process is loading.

A class that travels by value is one object per process, so that all values of a call share it. It gets its attributes
from the first pickle that brings it during a call: the function's, then that of the arguments, then those of results
that the call uses. A program that reads results loads no call, so reading never changes its classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary


class _Loading:
    """State of this process. A processor loads one call at a time."""

    def __init__(self) -> None:
        self.number = 0
        self.is_active = False
        self._set_in: WeakKeyDictionary[type, int] = WeakKeyDictionary()
        """By class: the call that has set its attributes; 0: none has."""

    def begin(self) -> None:
        """A call is loaded from now on. Whoever calls this sets `is_active` to False when the call begins to run."""
        self.number += 1
        self.is_active = True

    def note(self, classes: Iterable[type]) -> None:
        """Note that classes have the attributes that belong to this call."""
        for each in classes:
            self._set_in[each] = self.number

    def know(self, cls: type) -> None:
        """Note that the process has a class, with attributes of its own."""
        self._set_in.setdefault(cls, 0)

    def takes(self, cls: type) -> bool:
        """Tell whether a class is to get the attributes of a pickle that is being loaded, and note that it has."""
        if self.would_take(cls):
            self._set_in[cls] = self.number
            return True
        return False

    def would_take(self, cls: type) -> bool:
        """Tell what `takes` would, and note nothing."""
        known = self._set_in.get(cls)
        return known is None or (self.is_active and known != self.number)


loading = _Loading()
