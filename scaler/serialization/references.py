"""What travels only inside a task's arguments: futures and object references (as what they stand for), and clients.

They are found at any depth through their own pickling: while arguments are dumped, the thread has a *collection*, and
such an object registers there and leaves a placeholder. So arguments without them cost nothing.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from scaler.errors import ScalerError, SerializationError

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class Collection:
    """The references met while the arguments of one task are dumped. Input i of the task is `found[i]`.

    owner: the client that dumps them, for references that only work with their own client.
    """

    __slots__ = ("_indexes", "found", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.found: list[ByReference] = []
        self._indexes: dict[int, int] | None = None

    def index_of(self, reference: ByReference) -> int:
        """Return the index of the input that this reference becomes."""
        if self._indexes is None:
            self._indexes = {}
        index = self._indexes.setdefault(id(reference), len(self.found))
        if index == len(self.found):
            self.found.append(reference)
        return index

    def clear(self) -> None:
        """Forget what was met: the arguments are dumped again."""
        self.found.clear()
        self._indexes = None


class _Thread(threading.local):
    """collection: set while this thread dumps arguments. inputs: set while it loads some."""

    collection: Collection | None = None
    inputs: Callable[[int], Any] | None = None


_thread = _Thread()


class DependencyFailedError(ScalerError):
    """Arguments hold a future that has failed or was cancelled: no task can be made of them.

    exception: what the future ended with, None when it was cancelled.
    """

    def __init__(self, exception: BaseException | None) -> None:
        super().__init__(
            "a future in the arguments has failed" if exception else "a future in the arguments was cancelled"
        )
        self.exception = exception


class ArgumentOnly(ABC):
    """Base of objects that can be pickled only as (a part of) an argument of a task."""

    how_to_send = "give it to submit as an argument"

    @abstractmethod
    def reduce_into(self, collection: Collection, /) -> Reduced:
        """Return what stands for this object in the pickle, as `__reduce__` does."""

    def __reduce__(self) -> Reduced:
        collection = _thread.collection
        if collection is None:
            raise TypeError(f"a {type(self).__name__} cannot be pickled by itself: {self.how_to_send}")
        return self.reduce_into(collection)


class ByReference(ArgumentOnly):
    """Base of what stands for a value that is elsewhere: the task gets the value."""

    @abstractmethod
    def known_value(self, collection: Collection, /) -> tuple[Any] | None:
        """Return the value in a tuple when it is at hand and may travel by itself; None to travel as a reference.

        Raises a ScalerError when this collection's client cannot use it.
        """

    def reduce_into(self, collection: Collection, /) -> Reduced:
        known = self.known_value(collection)
        if known is not None:
            return same, known
        return load_input, (collection.index_of(self),)


def same(value: Any) -> Any:
    """Return the value: what a reference to a known value is pickled as."""
    return value


def load_input(index: int) -> Any:
    """Return input `index` of the task whose arguments this thread is loading: what a placeholder is pickled as.

    Raises SerializationError when no arguments are being loaded.
    """
    inputs = _thread.inputs
    if inputs is None:
        raise SerializationError("a reference can be loaded only as part of a task's arguments")
    return inputs(index)


class collecting:  # noqa: N801 (a context manager, used like a function; a generator costs five times as much)
    """While in this context, what this thread pickles is part of a task's arguments."""

    __slots__ = ("_before", "collection")

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._before = _thread.collection

    def __enter__(self) -> Collection:
        _thread.collection = self.collection
        return self.collection

    def __exit__(self, *_exception: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave the context. Harmless when repeated: Ctrl-C can come after `with` has entered and before its block."""
        _thread.collection = self._before


class providing:  # noqa: N801
    """While in this context, this thread loads arguments, and placeholders are filled by `inputs`."""

    __slots__ = ("_before", "_inputs")

    def __init__(self, inputs: Callable[[int], Any]) -> None:
        self._inputs = inputs

    def __enter__(self) -> None:
        self._before = _thread.inputs
        _thread.inputs = self._inputs

    def __exit__(self, *_exception: object) -> None:
        _thread.inputs = self._before
