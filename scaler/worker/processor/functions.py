"""What a processor's tasks need from elsewhere: stored objects, and the functions and serializers that run them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaler.errors import ObjectLostError
from scaler.ids import show
from scaler.protocol.messages import is_stored, stored_reference
from scaler.serialization import (
    Serializer,
    load_function,
    load_retry_on,
    load_serializer,
    load_value,
    parts_of,
    size_of,
)
from scaler.worker.frames import Buffer

if TYPE_CHECKING:  # most processors never need it
    from scaler.object_storage.client import BlockingStorage

FETCH_SECONDS = 10.0
"""How long a task waits for an object that the storage does not have; then it is lost."""
CACHE_BYTES = 256 * 1024 * 1024
NO_STORAGE = "this worker knows no object storage: neither was one set, nor does its scheduler advertise one"
MAX_LOADED = 1024
"""Functions and serializers that a processor keeps loaded."""


class StoredObjects:
    """Stored objects, the last used ones cached. Connects to the storage when it is first needed."""

    def __init__(self, connect: Callable[[str], BlockingStorage], cache_bytes: int = CACHE_BYTES) -> None:
        self._connect = connect
        self._storage: BlockingStorage | None = None
        self._cache: OrderedDict[bytes, list[memoryview]] = OrderedDict()
        self._cached_bytes = 0
        self._limit_bytes = cache_bytes
        self.address = ""

    def move(self, address: str) -> None:
        """Use the storage at this address from now on."""
        if self._storage is not None and address != self.address:
            self._storage.close()
            self._storage = None
        self.address = address

    def parts(self, payload: Buffer, is_own: bool = False) -> Sequence[memoryview]:
        """Return the parts behind a payload, stored or inline. Raises ObjectLostError.

        is_own: they are for one task alone. When they lie in memory of their own, that task may write to it, and no
        other task must see it: they are not cached. All others are read-only.
        """
        if not is_stored(payload):  # type: ignore[arg-type]
            return parts_of(payload)
        identifier = bytes(payload[1:17])
        found = self._cache.get(identifier)
        if found is not None:
            self._cache.move_to_end(identifier)
            return found
        found = self._open().get(identifier, FETCH_SECONDS)
        size = size_of(found)
        if is_own and not all(part.readonly for part in found):
            return found
        found = [part.toreadonly() for part in found]
        if size <= self._limit_bytes:
            self._cache[identifier] = found
            self._cached_bytes += size
            while self._cached_bytes > self._limit_bytes:
                self._cached_bytes -= size_of(self._cache.popitem(last=False)[1])
        return found

    def put(self, identifier: bytes, parts: Sequence[Buffer]) -> bytes:
        """Store an object and return the payload that points to it. Raises what the storage's client raises."""
        self._open().put(identifier, parts)
        return stored_reference(identifier, size_of(parts))

    def clear(self) -> None:
        """Empty the cache."""
        self._cache.clear()
        self._cached_bytes = 0

    def _open(self) -> BlockingStorage:
        if self._storage is None:
            if not self.address:
                raise ObjectLostError(NO_STORAGE)
            self._storage = self._connect(self.address)
        return self._storage


@dataclass(slots=True, eq=False)
class LoadedSpec:
    """A spec with its function, which is loaded when it is first needed. See `ToProcessor.SPEC`."""

    number: int
    function_id: bytes
    serializer_id: bytes
    retry_on: bytes
    name: str
    profiling: bool
    stream_output: bool
    once: bool
    mean_ns: float = 0.0
    """Duration of its tasks, a moving mean; 0: not known."""
    function: Callable[..., Any] | None = None
    serializer: Serializer | None = None
    retry_types: tuple[type[BaseException], ...] | None = None


class FunctionCache:
    """The specs and definitions that the agent has announced; functions stay loaded while they are in use."""

    def __init__(self, objects: StoredObjects) -> None:
        self._objects = objects
        self._definitions: dict[bytes, bytes] = {}
        self._functions: OrderedDict[tuple[bytes, bytes], Callable[..., Any]] = OrderedDict()
        self._serializers: dict[bytes, Serializer] = {}
        self.specs: dict[int, LoadedSpec] = {}

    def define(self, identifier: bytes, payload: bytes) -> None:
        self._definitions[identifier] = payload

    def forget(self, definitions: Sequence[bytes], specs: Sequence[int]) -> None:
        for number in specs:
            self.specs.pop(number, None)
        for identifier in definitions:
            self._definitions.pop(identifier, None)
            self._serializers.pop(identifier, None)
            for key in [key for key in self._functions if identifier in key]:
                del self._functions[key]

    def load(self, spec: LoadedSpec) -> Callable[..., Any]:
        """Load a spec's function and serializer. Raises SerializationError or ObjectLostError."""
        if spec.serializer_id:
            spec.serializer = self._serializer(spec.serializer_id)
        key = (spec.function_id, spec.serializer_id)
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = load_function(self._parts(spec.function_id), spec.serializer)
            if len(self._functions) > MAX_LOADED:
                self._functions.popitem(last=False)
        else:
            self._functions.move_to_end(key)
        spec.function = function
        return function

    def is_to_retry(self, spec: LoadedSpec, error: BaseException) -> bool:
        """Return True if the user asked to run the task again after such an error. Raises SerializationError."""
        if spec.retry_types is None:
            spec.retry_types = load_retry_on(spec.retry_on) if spec.retry_on else ()
        return isinstance(error, spec.retry_types)

    def inputs(self, payloads: Sequence[Buffer], serializer: Serializer | None) -> Callable[[int], Any]:
        """Return a function that gives the value of each input of a task, by its index."""

        def value(index: int) -> Any:
            return load_value(self._objects.parts(payloads[index]), serializer, f"input {index}")

        return value

    def _serializer(self, identifier: bytes) -> Serializer:
        serializer = self._serializers.get(identifier)
        if serializer is None:
            serializer = self._serializers[identifier] = load_serializer(self._parts(identifier))
        return serializer

    def _parts(self, identifier: bytes) -> Sequence[memoryview]:
        try:
            payload = self._definitions[identifier]
        except KeyError:
            raise ObjectLostError(f"definition {show(identifier)} is not known to the processor") from None
        return self._objects.parts(payload)
