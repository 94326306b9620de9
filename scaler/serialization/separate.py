"""Values that share a payload and nothing else: the items of a chunk, and its results.

One pickle of several values keeps what the values have in common: a list that stands in two of them is one list again,
and what the call with the first does to the list reaches the second. Here each value has a pickle of its own, made when
the value is added. Classes that travel by value are pickled once for all values, because they are large. A buffer that
several values share travels once, and each value gets its own copy.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from scaler.serialization import PLAIN_PICKLE_ERRORS, Buffer, Serializer, load_function, modules_by_value
from scaler.serialization.arguments import current_inputs, using_inputs
from scaler.serialization.snapshot import Fresh, Unchanging, is_found_by_name

if TYPE_CHECKING:  # most processes never need cloudpickle
    from scaler.serialization.by_value import PickleStream

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values that cannot change: sharing them is harmless, and pickling each by itself would take time."""


def is_atomic(value: object) -> bool:
    """Tell whether a value, or each member of a tuple, is an atom."""
    return type(value) in ATOMS or (type(value) is tuple and ATOMS.issuperset(map(type, value)))


def outside(part: Buffer, protocol: int) -> Buffer | pickle.PickleBuffer:
    """Return bytes as they go into a pickle: beside it where the protocol can, so that nobody searches them for names.

    The bytes are a pickle themselves.
    """
    return pickle.PickleBuffer(part) if protocol >= 5 else bytes(part)


class ValuePacker:
    """Takes values, each as it is at that moment, and becomes a `PackedValues` where it is unpickled."""

    def __init__(self) -> None:
        self.atoms: list[Any] = []
        """The values, as long as all are atoms."""
        self._rows: list[tuple[bytes, tuple[int, ...]]] = []
        """Of each value: its pickle, and the numbers of its buffers."""
        self._buffers: list[pickle.PickleBuffer] = []
        self._numbers: dict[int, int] = {}
        """Of buffers, by the id of the object that each of them is."""
        self._classes: dict[type, int] = {}
        self._takes_modules = bool(modules_by_value())
        self._by_value_types: set[type] = set()
        """Types of values that plain pickle could not take along."""
        self._stream: PickleStream | None = None

    def __len__(self) -> int:
        return len(self._rows) or len(self.atoms)

    def add(self, value: Any) -> None:
        """Take a value. Raises whatever its own pickling raises; then nothing was added."""
        if not self._rows:
            if is_atomic(value):
                self.atoms.append(value)
                return
            row = self._pickled(value)
            self._rows = [self._pickled(each) for each in self.atoms]
            self._rows.append(row)
        else:
            self._rows.append(self._pickled(value))

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        if not self._rows:
            return PackedValues, (self.atoms, b"", b"", (), b"")
        pickles = b"".join(row[0] for row in self._rows)
        counts = array("Q")
        for data, numbers in self._rows:
            counts.extend((len(data), len(numbers), *numbers))
        definitions = b""
        if self._classes:
            from scaler.serialization.by_value import dumps  # noqa: PLC0415 (most processes never need cloudpickle)

            definitions = dumps(list(self._classes), None)
        buffers = tuple([outside(each.raw(), protocol) for each in self._buffers])
        return PackedValues, ([], outside(pickles, protocol), counts.tobytes(), buffers, outside(definitions, protocol))

    def _pickled(self, value: Any) -> tuple[bytes, tuple[int, ...]]:
        buffers: list[pickle.PickleBuffer] = []
        data = b""
        if type(value) not in self._by_value_types:
            try:
                data = pickle.dumps(value, 5, buffer_callback=buffers.append)
            except PLAIN_PICKLE_ERRORS:
                data = b"__main__"
        if not data or b"__main__" in data or self._takes_modules:
            if self._stream is None:
                from scaler.serialization.by_value import PickleStream  # noqa: PLC0415 (see above)

                self._stream = PickleStream(self._class_number)
            self._by_value_types.add(type(value))
            data, buffers = self._stream.dumps(value)
        return data, tuple(map(self._buffer_number, buffers)) if buffers else ()

    def _class_number(self, value: object) -> int | None:
        """Return the number by which a pickle names a class; None for every object that it contains itself."""
        if not isinstance(value, type) or is_found_by_name(value):
            return None
        return self._classes.setdefault(value, len(self._classes))

    def _buffer_number(self, buffer: pickle.PickleBuffer) -> int:
        raw = buffer.raw()
        number = len(self._buffers)
        if memoryview(raw.obj).nbytes == raw.nbytes:  # the whole object, which the list keeps: its id stays its own
            number = self._numbers.setdefault(id(raw.obj), number)
        if number == len(self._buffers):
            self._buffers.append(buffer)
        return number


class PackedValues(Sequence[Any]):
    """Values that a `ValuePacker` took. Each time that one is read, it is another object."""

    def __init__(
        self, atoms: list[Any], pickles: Buffer, counts: bytes, buffers: Sequence[Buffer], definitions: Buffer
    ) -> None:
        self.atoms = atoms
        """The values, if all of them are atoms."""
        self._raw = atoms, pickles, counts, buffers, definitions
        self._pickles = memoryview(pickles)
        self._rows: list[tuple[int, int, tuple[int, ...]]] = list(_rows_of(counts))
        used = [number for _, _, numbers in self._rows for number in numbers]
        self._buffers = buffers
        self._is_shared = [used.count(number) > 1 for number in range(len(buffers))]
        self._definitions = Fresh(lambda: pickle.loads(definitions)) if len(definitions) else None  # noqa: S301
        self._inputs = current_inputs()

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        atoms, pickles, counts, buffers, definitions = self._raw
        copies = tuple([outside(each, protocol) for each in buffers])
        return PackedValues, (atoms, outside(pickles, protocol), counts, copies, outside(definitions, protocol))

    def __len__(self) -> int:
        return len(self._rows) or len(self.atoms)

    def __getitem__(self, index: Any) -> Any:
        """Return a value of its own. Raises whatever its unpickling raises."""
        if not self._rows:
            return self.atoms[index]
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        begin, end, numbers = self._rows[index]
        data = self._pickles[begin:end]
        buffers = [*map(self._buffer, numbers)] if numbers else None
        if self._inputs is None and self._definitions is None:
            return pickle.loads(data, buffers=buffers)  # noqa: S301 (as in `load`)
        with using_inputs(self._inputs):
            if self._definitions is None:
                return pickle.loads(data, buffers=buffers)  # noqa: S301
            unpickler = _Unpickler(BytesIO(data), buffers=buffers)
            unpickler.classes = self._definitions.get()
            return unpickler.load()

    def _buffer(self, number: int) -> Buffer:
        buffer = self._buffers[number]
        return bytearray(buffer) if self._is_shared[number] or memoryview(buffer).readonly else buffer


class Items:
    """An argument of a task that arrives as a `PackedValues`. It is packed when the task's arguments are pickled."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        packer = ValuePacker()
        for item in self.items:
            packer.add(item)
        return packer.__reduce_ex__(protocol)


class PickledFunction(Unchanging):
    """A function as it was pickled. Each call gets the function as it was then, from `fresh`."""

    def __init__(self, parts: Sequence[Buffer], serializer: Serializer | None = None) -> None:
        """serializer: the user's, if it has pickled the function."""
        self._parts = parts = [memoryview(part).toreadonly() for part in parts]  # loaded again, so never written to
        self.serializer = serializer
        self.fresh = Fresh(lambda: load_function(parts, serializer))

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        return PickledFunction, ([outside(part, protocol) for part in self._parts], self.serializer)


class _Unpickler(pickle.Unpickler):
    classes: list[type]

    def persistent_load(self, number: int) -> type:
        return self.classes[number]


def _rows_of(counts: bytes) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    numbers = iter(array("Q", counts))
    end = 0
    for size in numbers:
        begin, end = end, end + size
        yield begin, end, tuple([next(numbers) for _ in range(next(numbers))])
