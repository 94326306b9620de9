"""Stored objects, functions, and serializers for a processor's tasks."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from scaler.errors import LimitError, ObjectLostError, UnreachableError, UsageError
from scaler.ids import show
from scaler.plugins import part_of
from scaler.protocol.messages import is_stored, stored_reference
from scaler.serialization import (
    Buffer,
    Serializer,
    format_of,
    load_function,
    load_retry_on,
    load_serializer,
    parts_of,
    size_of,
)
from scaler.serialization.snapshot import Fresh

DISK_SECONDS = 300.0
"""Seconds that a result waits for a storage whose disk is full or broken."""
DISK_PAUSE_SECONDS = 0.5
CACHE_BYTES = 256 * 1024 * 1024
MAX_COSTS_US = 2**32 - 1
NO_STORAGE = "this worker has no object storage: none is configured, and its scheduler advertises none"


class StoreConnection(Protocol):
    def put(self, object_id: bytes, parts: Sequence[Buffer]) -> None: ...

    def get(self, object_id: bytes) -> list[memoryview]: ...

    def close(self) -> None: ...


class StoredObjects:
    """LRU cache of stored objects. Connects to the storage on first use."""

    def __init__(
        self,
        connect: Callable[[str, bool], StoreConnection],
        report_wait: Callable[[str], None],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """connect: receives an address, and whether it is the host's store. report_wait: receives the reason why a
        result waits, or "" after the wait. refresh: calls `move` if the storage has moved."""
        self._connect = connect
        self._refresh = refresh
        self._report_wait = report_wait
        self._storage: StoreConnection | None = None
        self._cache: OrderedDict[bytes, list[memoryview]] = OrderedDict()
        self._cached_bytes = 0
        self.address = ""
        self.is_host_store = False
        self.got_ns = self.got_bytes = 0

    def take_costs(self) -> tuple[int, int]:
        """Return microseconds spent fetching objects, and their bytes, since the last call."""
        costs = min(self.got_ns // 1000, MAX_COSTS_US), self.got_bytes
        self.got_ns = self.got_bytes = 0
        return costs

    def move(self, address: str, *, is_host_store: bool = False) -> None:
        """Switch to the storage at this address. is_host_store: a new store may replace it."""
        self.is_host_store = is_host_store
        if self._storage is not None and address != self.address:
            self._storage.close()
            self._storage = None
        self.address = address

    def parts(self, payload: Buffer, is_own: bool = False) -> Sequence[memoryview]:
        """Return the parts of a stored or inline payload, read-only. Raises ObjectLostError. is_own: the object is used
        by one task only, so it is not cached and its memory is writable if possible."""
        if not is_stored(payload):  # type: ignore[arg-type]
            return parts_of(payload)
        identifier = bytes(payload[1:17])
        found = self._cache.get(identifier)
        if found is not None:
            self._cache.move_to_end(identifier)
            return found
        began_ns = time.monotonic_ns()
        try:
            found = self._open().get(identifier)
        finally:
            self.got_ns += time.monotonic_ns() - began_ns
        size = size_of(found)
        self.got_bytes += size
        if is_own and not all(part.readonly for part in found):
            return found
        found = [part.toreadonly() for part in found]
        if size <= CACHE_BYTES:
            self._cache[identifier] = found
            self._cached_bytes += size
            while self._cached_bytes > CACHE_BYTES:
                self._cached_bytes -= size_of(self._cache.popitem(last=False)[1])
        return found

    def put(self, identifier: bytes, parts: Sequence[Buffer]) -> bytes:
        """Store an object and return its payload. Raises the errors of the storage's client. Retries for DISK_SECONDS
        if the disk is full or the host has no store, to avoid losing a finished result."""
        until = time.monotonic() + DISK_SECONDS
        failure = ""
        try:
            while True:
                try:
                    self._open().put(identifier, parts)
                    return stored_reference(identifier, size_of(parts), is_at_host=self.is_host_store)
                except LimitError as error:
                    if not error.may_pass or time.monotonic() >= until:
                        raise
                    if failure != str(error):
                        failure = str(error)
                        self._report_wait(f"its result waits for up to {DISK_SECONDS:g} s: {failure}")
                except UnreachableError:
                    was_host_store = self.is_host_store
                    self._refresh()
                    if not was_host_store or time.monotonic() >= until:
                        raise
                time.sleep(DISK_PAUSE_SECONDS)
        finally:
            if failure:
                self._report_wait("")

    def clear(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0

    def _open(self) -> StoreConnection:
        self._refresh()
        if self._storage is None:
            if not self.address:
                raise ObjectLostError(NO_STORAGE)
            self._storage = self._connect(self.address, self.is_host_store)
        return self._storage


class Loaded(Protocol):
    def get(self) -> Callable[..., Any]:
        """Return the function for one call."""


Wrap = Callable[["LoadedSpec", Loaded], Loaded]


@dataclass(slots=True, eq=False)
class LoadedSpec:
    """A spec, and its function once loaded for the first task. See `ToProcessor.SPEC`."""

    number: int
    function_id: bytes
    serializer_id: bytes
    code_id: bytes
    retry_on: bytes
    name: str
    profiling: bool
    stream_output: bool
    once: bool
    packages: tuple[tuple[str, str], ...]
    context: str = ""
    mean_ns: float = 0.0
    function: Loaded | None = None
    serializer: Serializer | None = None
    is_observed: bool = field(init=False)
    is_sent_at_once: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_observed = self.profiling or self.stream_output
        self.is_sent_at_once = self.once or self.stream_output

    def is_to_retry(self, error: BaseException) -> bool:
        """Raises SerializationError and the errors of the user's predicate."""
        return load_retry_on(self.retry_on)(error)


class Uploads:
    """The importable archive of this process. Ids of archives are content digests; empty: none."""

    _modules: Any = None

    @property
    def active(self) -> bytes:
        return b"" if self._modules is None else self._modules.active

    @property
    def data(self) -> bytes:
        return b"" if self._modules is None else self._modules.data

    def use(self, identifier: bytes, read: Callable[[], bytes] = bytes) -> None:
        """Activate an archive. read: returns the bytes of a new archive. Raises its errors, SerializationError, and
        UsageError if the extension is missing."""
        if identifier and self._modules is None:
            self._modules = part_of("environment", "uploaded", "uploaded code").UploadedModules()
        if self._modules is not None:
            self._modules.use(identifier, read)

    def forget(self, identifier: bytes) -> None:
        if self._modules is not None:
            self._modules.forget(identifier)


class FunctionCache:
    def __init__(
        self, objects: StoredObjects, report_differences: Callable[[str, str], None], wrappers: Sequence[Wrap] = ()
    ) -> None:
        """report_differences: receives a function's name and the differences between imported packages. wrappers: wrap
        the functions of specs with a context."""
        self._objects = objects
        self._wrappers = wrappers
        self._report_differences = report_differences
        self._functions: dict[tuple[bytes, bytes, bytes], Fresh[Callable[..., Any]]] = {}
        """Functions by the ids of function, serializer, and code."""
        self._uploads = Uploads()
        self.definitions: dict[bytes, bytes] = {}
        self.specs: dict[int, LoadedSpec] = {}

    def add_spec(self, *values: Any) -> None:
        spec = LoadedSpec(*values)
        self.specs[spec.number] = spec

    def forget(self, definitions: Sequence[bytes], specs: Sequence[int]) -> None:
        for number in specs:
            self.specs.pop(number, None)
        for identifier in definitions:
            self.definitions.pop(identifier, None)
            for key in [key for key in self._functions if identifier in key]:
                del self._functions[key]
            self._uploads.forget(identifier)

    def load(self, spec: LoadedSpec) -> Callable[..., Any]:
        """Return a spec's function for one call. Raises SerializationError or ObjectLostError."""
        if spec.packages:
            self._compare(spec)
        if spec.code_id != self._uploads.active:
            self._use_code(spec.code_id)
        if spec.serializer_id:
            spec.serializer = load_serializer(self._parts(spec.serializer_id))
        else:
            spec.serializer = format_of(self._payload(spec.function_id))
        key = (spec.function_id, spec.serializer_id, spec.code_id)
        function = self._functions.get(key)
        if function is None:
            identifier, serializer = spec.function_id, spec.serializer
            function = self._functions[key] = Fresh(lambda: load_function(self._parts(identifier), serializer))
        loaded: Loaded = function
        if spec.context:
            for wrap in self._wrappers:
                loaded = wrap(spec, loaded)
        spec.function = loaded
        return loaded.get()

    def _compare(self, spec: LoadedSpec) -> None:
        packages, spec.packages = spec.packages, ()
        with suppress(UsageError):  # without the extension, versions are not compared
            if text := part_of("environment", "packages", spec.name).differences(packages):
                self._report_differences(spec.name, text)

    def uploaded_code(self) -> bytes:
        return self._uploads.data

    def _use_code(self, identifier: bytes) -> None:
        """Switch the uploaded code that tasks import. Raises SerializationError or ObjectLostError."""
        self._uploads.use(identifier, lambda: bytes(self._objects.parts(self._payload(identifier))[0]))
        for other in self.specs.values():
            if other.code_id != identifier:
                other.function = None  # reloaded before the spec's next task

    def _payload(self, identifier: bytes) -> bytes:
        payload = self.definitions.get(identifier)
        if payload is None:
            raise ObjectLostError(f"definition {show(identifier)} is unknown to the processor")
        return payload

    def _parts(self, identifier: bytes) -> Sequence[memoryview]:
        return self._objects.parts(self._payload(identifier))
