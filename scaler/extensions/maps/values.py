"""Payloads of independent values: the items of a chunk, and its results.

Atoms and tuples of atoms share one pickle. Any other value has its own pickle, created when the value is added, so no
call can change another call's value. Classes pickled by value, and shared buffers, are sent once for all values.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any

from scaler.serialization import ATOMS, PLAIN_PICKLE_ERRORS, Buffer, outside
from scaler.serialization.arguments import current_inputs, using_inputs
from scaler.serialization.snapshot import Fresh, is_found_by_name, modules_by_value

if TYPE_CHECKING:  # most processes never need cloudpickle
    from scaler.serialization.by_value import Pickler

MAX_CONTAINED_BYTES = 4096
"""Maximum size of a buffer inside the pickle of its value."""


class ValuePacker:
    """Collects values in their current state, and is unpickled as a `PackedValues`."""

    def __init__(self) -> None:
        self.plain: list[Any] = []
        """Atoms, tuples of atoms, and None in place of any other value."""
        self._rows = array("Q")
        """Position, pickle size, number of buffers, and buffer numbers of each other value."""
        self._pickles: list[bytes] = []
        self._buffers: list[pickle.PickleBuffer] = []
        self._numbers: dict[int, int] = {}
        self._classes: dict[type, int] = {}
        self._takes_modules = bool(modules_by_value())
        self._by_value_types: set[type] = set()
        self._pickler: Pickler | None = None
        self._file = BytesIO()
        self._buffers_of_one: list[pickle.PickleBuffer] = []

    def __len__(self) -> int:
        return len(self.plain)

    def add_all(self, values: Sequence[Any]) -> None:
        """Add values to an empty packer. Raises their pickling errors."""
        kinds = set(map(type, values)) - ATOMS
        members = chain.from_iterable(each for each in values if type(each) is tuple)
        if not kinds or (kinds == {tuple} and ATOMS.issuperset(map(type, members))):
            self.plain = list(values)
        else:
            for value in values:
                self.add(value)

    def add(self, value: Any) -> None:
        """Add a value. Raises its pickling errors, after which nothing is added."""
        if type(value) in ATOMS or (type(value) is tuple and ATOMS.issuperset(map(type, value))):
            self.plain.append(value)
            return
        data, buffers = self._pickled(value)
        numbers = [*map(self._buffer_number, buffers)]
        self._rows.extend((len(self.plain), len(data), len(numbers), *numbers))
        self._pickles.append(data)
        self.plain.append(None)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        plain = pickle.dumps(self.plain, 5)
        if not self._rows:
            return PackedValues, (plain, len(self.plain))
        definitions = b""
        if self._classes:
            from scaler.serialization.by_value import dumps  # noqa: PLC0415 (most processes never need cloudpickle)

            definitions = dumps(list(self._classes), None)
        pickles = outside(b"".join(self._pickles), protocol)
        buffers = tuple([outside(each.raw(), protocol) for each in self._buffers])
        return PackedValues, (
            plain,
            len(self.plain),
            self._rows.tobytes(),
            pickles,
            buffers,
            outside(definitions, protocol),
        )

    def _pickled(self, value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
        buffers: list[pickle.PickleBuffer] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes <= MAX_CONTAINED_BYTES:
                return True
            buffers.append(buffer)
            return False

        data = b""
        if type(value) not in self._by_value_types:
            try:
                data = pickle.dumps(value, 5, buffer_callback=keep)
            except PLAIN_PICKLE_ERRORS:
                data = b"__main__"
        if not data or b"__main__" in data or self._takes_modules:
            self._by_value_types.add(type(value))
            return self._by_value(value)
        return data, buffers

    def _by_value(self, value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
        if self._pickler is None:
            from scaler.serialization.by_value import Pickler  # noqa: PLC0415 (see above)

            self._pickler = Pickler(self._file, 5, buffer_callback=self._buffers_of_one.append)
            self._pickler.persistent_id = self._class_number
        self._buffers_of_one.clear()
        self._file.seek(0)
        self._file.truncate()
        self._pickler.clear_memo()  # values share only the classes that `_class_number` numbers
        self._pickler.globals_ref = {}
        self._pickler.dump(value)
        return self._file.getvalue(), self._buffers_of_one.copy()

    def _class_number(self, value: object) -> int | None:
        """Return the number of a class stored outside the pickles; None for any other object."""
        if not isinstance(value, type) or is_found_by_name(value):
            return None
        return self._classes.setdefault(value, len(self._classes))

    def _buffer_number(self, buffer: pickle.PickleBuffer) -> int:
        raw = buffer.raw()
        number = len(self._buffers)
        if memoryview(raw.obj).nbytes == raw.nbytes:  # the list keeps the object alive, so its id is unique
            number = self._numbers.setdefault(id(raw.obj), number)
        if number == len(self._buffers):
            self._buffers.append(buffer)
        return number


class PackedValues(Sequence[Any]):
    """Values from a `ValuePacker`. Each read of a value that is not plain returns a new object."""

    def __init__(
        self,
        plain: bytes,
        count: int,
        rows: bytes = b"",
        pickles: Buffer = b"",
        buffers: Sequence[Buffer] = (),
        definitions: Buffer = b"",
    ) -> None:
        """plain: the pickle of a list with None in place of values that have their own pickles."""
        self._raw = plain, count, rows, pickles, buffers, definitions
        self._plain = plain
        self._count = count
        self._loaded: list[Any] | None = None
        self._pickles = memoryview(pickles)
        self._rows: dict[int, tuple[int, int, tuple[int, ...]]] = dict(_rows_of(rows)) if rows else {}
        used = [number for _, _, numbers in self._rows.values() for number in numbers]
        self._buffers = buffers
        self._is_shared = [used.count(number) > 1 for number in range(len(buffers))]
        self._definitions = Fresh(lambda: pickle.loads(definitions)) if len(definitions) else None  # noqa: S301
        self._inputs = current_inputs()

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        plain, count, rows, pickles, buffers, definitions = self._raw
        copies = tuple([outside(each, protocol) for each in buffers])
        outer = outside(pickles, protocol), copies, outside(definitions, protocol)
        return PackedValues, (plain, count, rows, *outer) if rows or len(definitions) else (plain, count)

    def __len__(self) -> int:
        return self._count

    @property
    def is_plain(self) -> bool:
        """Whether all values share one pickle, because no call can change them."""
        return not self._rows

    def all(self) -> list[Any]:
        values: list[Any] = self._loads(self._plain)
        for position in self._rows:
            values[position] = self._row(position)
        return values

    def __getitem__(self, index: Any) -> Any:
        """Return a value. Raises its unpickling errors."""
        position = range(self._count)[index]
        if isinstance(position, range):
            return [self[each] for each in position]
        if position in self._rows:
            return self._row(position)
        if self._loaded is None:
            self._loaded = self._loads(self._plain)
        return self._loaded[position]

    def _row(self, index: int) -> Any:
        begin, end, numbers = self._rows[index]
        data = self._pickles[begin:end]
        buffers = [*map(self._buffer, numbers)] if numbers else None
        if self._inputs is None:
            return self._loads(data, buffers)
        with using_inputs(self._inputs):
            return self._loads(data, buffers)

    def _loads(self, data: Buffer, buffers: Sequence[Buffer] | None = None) -> Any:
        if self._definitions is None:
            return pickle.loads(data, buffers=buffers)  # noqa: S301 (as in `load`)
        unpickler = _Unpickler(BytesIO(data), buffers=buffers)
        unpickler.classes = self._definitions.get()
        return unpickler.load()

    def _buffer(self, number: int) -> Buffer:
        buffer = self._buffers[number]
        return bytearray(buffer) if self._is_shared[number] or memoryview(buffer).readonly else buffer


class _Unpickler(pickle.Unpickler):
    classes: list[type]

    def persistent_load(self, number: int) -> type:
        return self.classes[number]


class Items:
    """A task argument that packs itself when pickled. The task receives a `PackedValues`."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:  # type: ignore[override]
        packer = ValuePacker()
        packer.add_all(self.items)
        return packer.__reduce_ex__(protocol)


def _rows_of(rows: bytes) -> Iterator[tuple[int, tuple[int, int, tuple[int, ...]]]]:
    numbers = iter(array("Q", rows))
    end = 0
    for position in numbers:
        begin, end = end, end + next(numbers)
        yield position, (begin, end, tuple([next(numbers) for _ in range(next(numbers))]))
