"""Functions on their way to workers: serialized once, and made into templates of tasks with the user's options.

A function that travels by value (of `__main__`, a lambda, a closure) carries the globals and cells that it uses. It is
serialized again when one of them is another object than before, and every time when one of them can change by itself
(a list, an instance). So a submit always sends the function as it is at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from scaler.client.futures import FutureTable
from scaler.client.tasks import FunctionReference, ObjectUpload, TaskTemplate
from scaler.errors import UsageError
from scaler.ids import content_id
from scaler.needs import task_needs
from scaler.protocol.messages import INLINE_LIMIT_BYTES, MAX_REPLICAS, Spec
from scaler.serialization import (
    Parts,
    Serializer,
    dump_function,
    dump_retry_on,
    dump_serializer,
    load_serializer,
    modules_by_value,
    name_of,
    size_of,
    to_payload,
)

MAX_SECONDS = 1e9
"""More would be beyond what some clocks of the system can count."""
DEFAULT_RETRIES = 3
MAX_RETRIES = 10_000
MAX_NAME_CHARACTERS = 200
MAX_CACHED_FUNCTIONS = 1024
MAX_TEMPLATES_PER_FUNCTION = 64
MAX_RECENT_FUNCTIONS = 256
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, ModuleType)
_MISSING = object()

Carried = list[tuple[object, str, object]]
"""What a function carries: where it was found (a dict of globals, a cell, a function), under which name, and what."""


def check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise UsageError unless the value is an integer from `least` on, up to `most` when that is given."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is {value!r}, and must be an integer {limits}")


class Options(NamedTuple):
    """Options of a task, as `Client.submit_verbose` takes them. Hashable: tasks of equal options share a Spec."""

    needs: tuple[tuple[str, float], ...] = ()
    priority: int = 0
    retries: int = DEFAULT_RETRIES
    retry_on: bytes = b""
    timeout_seconds: float = 0.0
    profiling: bool = False
    stream_output: bool = False
    deliver: bool = True
    name: str = ""
    replicas: int = 1
    expected_seconds: float = 0.0
    call: int = 0
    """The number of the client's call, such as a map."""
    owner: object = None
    """The executor that submits the tasks."""
    is_plain: bool = False
    """The built-in serializer makes the arguments, whatever the client's is."""


def checked_options(
    options: Options,
    capabilities: object,
    retry_on: object,
    memory: float | str | None = None,
    cpus: float | None = None,
    gpu: float | None = None,
) -> Options:
    """Return a user's options, with these as tasks carry them. Raises UsageError that says what to change."""
    seconds = options.timeout_seconds
    check_integer("priority", options.priority, -(2**31), 2**31 - 1)
    check_integer("retries", options.retries, 0, MAX_RETRIES)
    check_integer("replicas", options.replicas, 1, MAX_REPLICAS)
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"timeout_seconds is {seconds!r}, and must be from 0 to {MAX_SECONDS:g}; 0 means no limit")
    if capabilities is not None and not isinstance(capabilities, Mapping):
        raise UsageError(f'capabilities is {capabilities!r}, and must be a dict such as {{"gpu": 1, "linux": None}}')
    if not isinstance(options.name, str):
        raise UsageError(f"name is {options.name!r}, and must be a string")
    if not isinstance(retry_on, type | Iterable) or isinstance(retry_on, str):
        raise UsageError(f"retry_on is {retry_on!r}, and must be a type of exceptions or a tuple of such")
    types = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
    return options._replace(
        needs=task_needs(capabilities, memory, cpus, gpu).items,
        retry_on=dump_retry_on(types),
        timeout_seconds=float(seconds),
        expected_seconds=checked_hint(options.expected_seconds),
    )


def checked_hint(seconds: object) -> float:
    """Return a user's `expected_seconds`. Raises UsageError that says what to change."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"expected_seconds is {seconds!r}, and must be from 0 to {MAX_SECONDS:g}; 0 says nothing")
    return float(seconds)


def of_chunks(options: Options, chunk_size: int | None) -> Options:
    """Return the options of tasks that are chunks of calls with these options. Raises UsageError on a bad size.

    Chunks of a measured size begin with one item each, and are larger only when their function is measured, so the hint
    of one call is that of a chunk.
    """
    if chunk_size is None:
        return options
    check_integer("chunk_size", chunk_size, 1)
    calls = min(chunk_size, MAX_SECONDS)  # it may be an integer that no float can be
    return options._replace(expected_seconds=min(options.expected_seconds * calls, MAX_SECONDS))


def check_call(args: object, kwargs: object) -> None:
    """Check the arguments that `submit_verbose` passes on. Raises UsageError that says what to change."""
    if not isinstance(args, Iterable) or isinstance(args, str | bytes | Mapping):
        raise UsageError(f"args is {args!r}, and must be a tuple of the positional arguments, such as ({args!r},)")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise UsageError(f"kwargs is {kwargs!r}, and must be a dict of names to keyword arguments")


class CachedFunction(NamedTuple):
    """A function as it was serialized, what it carried then, and its templates by their options and parent."""

    function: Callable[..., Any]
    reference: FunctionReference
    carried: Carried
    templates: dict[tuple[Options, bytes], TaskTemplate]

    def has_changed(self) -> bool:
        """Tell whether anything that it carried is something else now."""
        for holder, name, value in self.carried:  # noqa: SIM110 (any takes longer)
            if _read(holder, name) is not value:
                return True
        return False


class TemplateTable:
    """The functions of one client that were submitted lately, and the templates of their tasks."""

    def __init__(self, futures: FutureTable, serializer: Serializer | None) -> None:
        self._futures = futures
        self._serializer = serializer
        self._registered_serializer: FunctionReference | None = None
        self._cached: dict[tuple[int, bool], CachedFunction] = {}
        """By the id of the function, and whether the built-in serializer made it."""
        self._by_value = modules_by_value()
        self._recent: dict[bytes, FunctionReference] = {}
        """Keeps what was used lately from being released, only to be registered again by the next task."""

    def template(self, function: Callable[..., Any], options: Options, parent: bytes) -> TaskTemplate:
        """Return the template of a task. Raises UsageError or SerializationError when the function cannot be sent."""
        by_value = modules_by_value()
        if by_value != self._by_value:  # what was sent by name may have to travel by value now
            self._by_value = by_value
            self._cached.clear()
        cached = self._cached.get((id(function), options.is_plain))
        if cached is None or cached.function is not function or (cached.carried and cached.has_changed()):
            cached = self._cache(function, options.is_plain)
        template = cached.templates.get((options, parent))
        if template is None:
            return self._make(cached, options, parent)
        if template.uploads and any(upload.error is not None for upload in template.uploads):
            self.clear()  # the storage had no room for the function, and may have it now
            return self.template(function, options, parent)
        return template

    def of_parts(self, spec: Spec, functions: Sequence[Parts], parent: bytes) -> TaskTemplate:
        """Return the template of tasks of this spec. functions: the function, and the serializer if there is one."""
        registered = tuple(map(self._register, functions))
        serializer = load_serializer(functions[1]) if spec.serializer else None
        spec = replace(spec, function=registered[0].id, deliver=True, parent=parent, call=0)
        if serializer is not None:
            spec = replace(spec, serializer=registered[1].id)
        return TaskTemplate(spec, registered, serializer)

    def clear(self) -> None:
        self._cached.clear()
        self._recent.clear()
        self._registered_serializer = None

    def _cache(self, function: Callable[..., Any], is_plain: bool) -> CachedFunction:
        serializer = None if is_plain else self._serializer
        parts = dump_function(function, serializer)
        # A function whose pickle needs cloudpickle carries its code, and is not just its name.
        carried = carried_by(function, serializer is not None or b"cloudpickle" in bytes(parts[0]))
        cached = CachedFunction(function, self._register(parts), carried or [], {})
        if carried is not None:
            if len(self._cached) >= MAX_CACHED_FUNCTIONS:
                del self._cached[next(iter(self._cached))]
            self._cached[id(function), is_plain] = cached
        return cached

    def _make(self, cached: CachedFunction, options: Options, parent: bytes) -> TaskTemplate:
        serializer = None if options.is_plain else self._serializer
        functions = [cached.reference]
        if serializer is not None:
            if self._registered_serializer is None:
                self._registered_serializer = self._register(dump_serializer(serializer))
            functions.append(self._registered_serializer)
        fields = options._asdict()
        del fields["owner"], fields["is_plain"]
        # Not too long, and of characters that have an encoding: it is sent and shown.
        name = (options.name or name_of(cached.function))[:MAX_NAME_CHARACTERS]
        fields["name"] = name.encode("utf-8", "replace").decode()
        serializer_id = functions[1].id if serializer is not None else b""
        spec = Spec(function=cached.reference.id, serializer=serializer_id, parent=parent, **fields)
        template = TaskTemplate(spec, tuple(functions), serializer, options.owner)
        if len(cached.templates) >= MAX_TEMPLATES_PER_FUNCTION:
            cached.templates.clear()
        cached.templates[options, parent] = template
        return template

    def _register(self, parts: Parts) -> FunctionReference:
        futures = self._futures
        upload: ObjectUpload | None = None
        if size_of(parts) > INLINE_LIMIT_BYTES:
            upload = futures.upload(parts)
            identifier, payload = upload.id, upload.payload
        else:
            payload = to_payload(parts)
            identifier = content_id(payload)
        with futures.condition:
            function = futures.registered.get(identifier)
            if function is None:
                function = FunctionReference(identifier, futures.releases, payload, upload)
                futures.registered[identifier] = function
            self._recent.pop(identifier, None)
            self._recent[identifier] = function
            if len(self._recent) > MAX_RECENT_FUNCTIONS:
                del self._recent[next(iter(self._recent))]
        return function


def carried_by(function: object, by_value: bool) -> Carried | None:
    """Return what a function carries, or None when that can change without being replaced."""
    if not by_value:
        return [] if isinstance(function, FunctionType | type) or isinstance(_reduced(function), str) else None
    if not isinstance(function, FunctionType):
        return None
    carried: Carried = []
    seen = {id(function)}
    stack = [function]
    while stack:
        for holder, name, value in _mentions(stack.pop()):
            if isinstance(value, FunctionType):
                if id(value) not in seen:
                    seen.add(id(value))
                    stack.append(value)
            elif not (value is _MISSING or isinstance(value, _ATOMS) or _is_constant(value)):
                return None
            carried.append((holder, name, value))
    return carried


def _reduced(function: object) -> object:
    """Return what pickle would make of an object: a string for what it finds by name in a module."""
    try:
        return function.__reduce_ex__(5)
    except Exception:  # noqa: BLE001 (a user's __reduce__ may raise anything; then it is no name)
        return None


def _mentions(function: FunctionType) -> Iterator[tuple[object, str, object]]:
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        yield function, name, getattr(function, name)
    for cell in function.__closure__ or ():
        yield cell, "", _read(cell, "")
    for code in _codes(function.__code__):
        for name in code.co_names:
            value = function.__globals__.get(name, _MISSING)
            if value is not _MISSING:
                yield function.__globals__, name, value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_constant(value: object) -> bool:
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType | type)
    if isinstance(value, tuple | frozenset):
        return all(isinstance(item, _ATOMS) for item in value)
    # Empty keyword defaults are replaced, not filled, by those who change them.
    return isinstance(value, CodeType) or (isinstance(value, dict) and not value)


def _read(holder: object, name: str) -> object:
    if isinstance(holder, dict):
        return holder.get(name, _MISSING)
    if isinstance(holder, CellType):
        try:
            return holder.cell_contents
        except ValueError:  # not assigned yet
            return _MISSING
    return getattr(holder, name)
