"""What users ask of a task beyond its function, checked and made into a Spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaler.client.checks import MAX_SECONDS, check_integer
from scaler.client.functions import FunctionTable, KnownFunction, is_by_value
from scaler.client.loop import ClientLoop
from scaler.client.tasks import Definition, Kind
from scaler.errors import UsageError
from scaler.ids import content_id
from scaler.needs import Needs
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Spec
from scaler.serialization import (
    Parts,
    Serializer,
    dump_function,
    dump_retry_on,
    dump_serializer,
    size_of,
    to_payload,
)

DEFAULT_RETRIES = 3
MAX_RETRIES = 10_000
MAX_NAME_CHARACTERS = 200
MAX_RECENT_DEFINITIONS = 256


@dataclass(frozen=True, slots=True)
class Options:
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
    is_plain: bool = False
    """The arguments are made by the built-in serializer, whatever the client's is."""
    hash: int = field(init=False, compare=False, repr=False)
    """Made once: it is looked at by every submit."""

    def __post_init__(self) -> None:
        values = (
            self.needs,
            self.priority,
            self.retries,
            self.retry_on,
            self.timeout_seconds,
            self.profiling,
            self.name,
        )
        object.__setattr__(self, "hash", hash(values))

    def __hash__(self) -> int:
        return self.hash


def make_options(
    *,
    capabilities: Mapping[str, float | None] | None = None,
    priority: int = 0,
    retries: int = DEFAULT_RETRIES,
    retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
    timeout_seconds: float = 0.0,
    profiling: bool = False,
    stream_output: bool = False,
    name: str | None = None,
) -> Options:
    """Check what a user asks. Raises UsageError that says what to change."""
    check_integer("priority", priority, -(2**31), 2**31 - 1)
    check_integer("retries", retries, 0, MAX_RETRIES)
    if not isinstance(timeout_seconds, int | float) or not 0 <= timeout_seconds <= MAX_SECONDS:
        raise UsageError(
            f"timeout_seconds is {timeout_seconds!r}, and must be from 0 to {MAX_SECONDS:g}; 0 means no limit"
        )
    if capabilities is not None and not isinstance(capabilities, Mapping):
        raise UsageError(f'capabilities is {capabilities!r}, and must be a dict such as {{"gpu": 1, "linux": None}}')
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name is {name!r}, and must be a string")
    if not isinstance(retry_on, type | Iterable) or isinstance(retry_on, str):
        raise UsageError(f"retry_on is {retry_on!r}, and must be a type of exceptions or a tuple of such")
    types = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
    return Options(
        needs=Needs.of(capabilities).items if capabilities else (),
        priority=priority,
        retries=retries,
        retry_on=dump_retry_on(types),
        timeout_seconds=float(timeout_seconds),
        profiling=profiling,
        stream_output=stream_output,
        name=name or "",
    )


def check_call(args: object, kwargs: object) -> None:
    """Check what `submit_verbose` is to call a function with. Raises UsageError that says what to change."""
    if not isinstance(args, Iterable) or isinstance(args, str | bytes | Mapping):
        raise UsageError(f"args is {args!r}, and must be a tuple of the positional arguments, such as ({args!r},)")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise UsageError(f"kwargs is {kwargs!r}, and must be a dict of names to keyword arguments")


class KindTable:
    """The functions of one client, and the kinds of task that were made of them."""

    def __init__(self, loop: ClientLoop, serializer: Serializer | None) -> None:
        self._loop = loop
        self._serializer = serializer
        self._serializer_definition: Definition | None = None
        self._functions = FunctionTable(self._define_function)
        self._plain_functions = FunctionTable(self._define_plain)
        self._recent: dict[bytes, Definition] = {}
        """Keeps what was used lately from being released, only to be defined again by the next task."""

    def kind(self, function: Callable[..., Any], options: Options, parent: bytes) -> Kind:
        """Return the kind of a task. Raises UsageError or SerializationError when the function cannot be sent."""
        known = (self._plain_functions if options.is_plain else self._functions).get(function)
        kind = known.kinds.get((options, parent))
        if kind is None:
            return self._make(known, options, parent)
        if kind.uploads and any(upload.error is not None for upload in kind.uploads):
            self.clear()  # the storage had no room for the function, and may have it now
            return self.kind(function, options, parent)
        return kind

    def clear(self) -> None:
        """Nothing that was sent may be used again."""
        self._functions.clear()
        self._plain_functions.clear()
        self._recent.clear()
        self._serializer_definition = None

    def _make(self, known: KnownFunction, options: Options, parent: bytes) -> Kind:
        serializer = None if options.is_plain else self._serializer
        definitions = [known.definition]
        if serializer is not None:
            if self._serializer_definition is None:
                self._serializer_definition = self._define(dump_serializer(serializer))
            definitions.append(self._serializer_definition)
        spec = Spec(
            function=known.definition.id,
            serializer=definitions[1].id if serializer is not None else b"",
            needs=options.needs,
            priority=options.priority,
            retries=options.retries,
            retry_on=options.retry_on,
            timeout_seconds=options.timeout_seconds,
            profiling=options.profiling,
            stream_output=options.stream_output,
            deliver=options.deliver,
            name=_shown(options.name or known.name),
            parent=parent,
        )
        kind = Kind(spec, tuple(definitions), serializer)
        known.remember((options, parent), kind)
        return kind

    def _define_function(self, function: Callable[..., Any]) -> tuple[Definition, bool]:
        parts = dump_function(function, self._serializer)
        return self._define(parts), self._serializer is not None or is_by_value(parts[0])

    def _define_plain(self, function: Callable[..., Any]) -> tuple[Definition, bool]:
        parts = dump_function(function)
        return self._define(parts), is_by_value(parts[0])

    def _define(self, parts: Parts) -> Definition:
        session = self._loop.futures.session
        upload = None
        if size_of(parts) > INLINE_LIMIT_BYTES:
            upload = self._loop.objects.upload(parts)
            identifier, payload = upload.id, upload.payload
        else:
            payload = to_payload(parts)
            identifier = content_id(payload)
        with self._loop.futures.condition:
            definition = session.definitions.get(identifier)
            if definition is None:
                definition = Definition(identifier, payload, upload, session.releases)
                session.definitions[identifier] = definition
            self._recent.pop(identifier, None)
            self._recent[identifier] = definition
            if len(self._recent) > MAX_RECENT_DEFINITIONS:
                del self._recent[next(iter(self._recent))]
        return definition


def _shown(name: str) -> str:
    """Return a name that can be sent and shown: not too long, and of characters that have an encoding."""
    return name[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()
