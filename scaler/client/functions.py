"""Prepares functions for workers: serializes each once, and creates task templates with the user's options.

A function pickled by value is serialized again if its snapshot has changed, and for every task without a snapshot.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from scaler import serialization
from scaler.client.futures import FutureTable
from scaler.client.options import NAMES, Options
from scaler.client.tasks import FunctionReference, ObjectUpload, TaskTemplate
from scaler.errors import UsageError
from scaler.ids import content_id
from scaler.plugins import part_of
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Spec
from scaler.serialization.snapshot import FunctionSnapshot, snapshot_of

MAX_NAME_CHARACTERS = 200
MAX_CACHED_FUNCTIONS = 1024
MAX_TEMPLATES_PER_FUNCTION = 64
MAX_RECENT_FUNCTIONS = 256
Packages = tuple[tuple[str, str], ...]


def _packages_of(function: Callable[..., Any]) -> Packages:
    try:
        found: Packages = part_of("environment", "environment", "").packages_of(function)
    except UsageError:
        return ()
    return found


class CachedFunction(NamedTuple):
    function: Callable[..., Any]
    reference: FunctionReference
    snapshot: FunctionSnapshot | None
    templates: dict[tuple[Options, bytes], TaskTemplate]
    packages: Packages


class TemplateTable:
    def __init__(self, futures: FutureTable, serializer: serialization.Serializer | None, code: bytes = b"") -> None:
        self._futures = futures
        self._serializer = serializer
        self.code = code
        self._shared: dict[str, FunctionReference] = {}
        """The serializer and the uploaded code, by field of a Spec, once a template needs them."""
        self._packages: WeakKeyDictionary[Callable[..., Any], Packages] = WeakKeyDictionary()
        self._cached: dict[int, CachedFunction] = {}
        self._by_value = serialization.modules_by_value()
        self._recent: dict[bytes, FunctionReference] = {}
        """Recently used functions, kept so that they are not released and registered again for the next task."""

    def template(self, function: Callable[..., Any], options: Options, parent: bytes) -> TaskTemplate:
        """Return the template of a task. Raises UsageError or SerializationError if the function cannot be sent."""
        by_value = serialization.modules_by_value()
        if by_value != self._by_value:  # functions pickled by name may now need pickling by value
            self._by_value = by_value
            self._cached.clear()
        cached = self._cached.get(id(function))
        if (
            cached is None
            or cached.function is not function
            or (cached.snapshot is not None and cached.snapshot.has_changed())
        ):
            cached = self._cache(function)
        template = cached.templates.get((options, parent))
        if template is None:
            return self._make(cached, options, parent)
        if template.uploads and any(upload.error is not None for upload in template.uploads):
            self.clear()  # the storage had no space for the function, but may have now
            return self.template(function, options, parent)
        return template

    def use_code(self, code: bytes) -> None:
        self.code = code
        self._shared.pop("code", None)
        self._cached.clear()

    def clear(self) -> None:
        self._cached.clear()
        self._recent.clear()
        self._shared.clear()

    def _cache(self, function: Callable[..., Any]) -> CachedFunction:
        # Before serializing, so that a concurrent change by another thread is detected later.
        snapshot = snapshot_of(function)
        parts = serialization.dump_function(function, self._serializer)
        cached = CachedFunction(function, self._register(parts), snapshot, {}, self._packages_of(function))
        if snapshot is not None:
            if len(self._cached) >= MAX_CACHED_FUNCTIONS:
                del self._cached[next(iter(self._cached))]
            self._cached[id(function)] = cached
        return cached

    def _packages_of(self, function: Callable[..., Any]) -> Packages:
        try:
            if (found := self._packages.get(function)) is None:
                found = self._packages[function] = _packages_of(function)
        except Exception:  # noqa: BLE001 (no weak references, no hash, or a __hash__ that raises)
            found = _packages_of(function)
        return found

    def _make(self, cached: CachedFunction, options: Options, parent: bytes) -> TaskTemplate:
        serializer = self._serializer
        shared: dict[str, FunctionReference] = {}
        if serializer is not None:
            what = f"serializer {serialization.name_of(serializer)}"
            shared["serializer"] = self._share("serializer", lambda: serialization.dump_value(serializer, None, what))
        if self.code:
            shared["code"] = self._share("code", lambda: [self.code])
        fields = options._asdict()
        del fields["owner"]
        # Shortened and encodable, because it is sent and shown.
        name = (options.name or serialization.name_of(cached.function))[:MAX_NAME_CHARACTERS]
        fields["name"] = name.encode("utf-8", "replace").decode()
        fields |= {"parent": parent, "packages": cached.packages, **{key: each.id for key, each in shared.items()}}
        spec = Spec(function=cached.reference.id, **fields)
        functions = cached.reference, *shared.values()
        template = TaskTemplate(spec, functions, serializer, options.owner)
        if len(cached.templates) >= MAX_TEMPLATES_PER_FUNCTION:
            cached.templates.clear()
        cached.templates[options, parent] = template
        return template

    def _share(self, field: str, parts: Callable[[], serialization.Parts]) -> FunctionReference:
        found = self._shared.get(field)
        if found is None:
            found = self._shared[field] = self._register(parts())
        return found

    def _register(self, parts: serialization.Parts) -> FunctionReference:
        futures = self._futures
        upload: ObjectUpload | None = None
        if serialization.size_of(parts) > INLINE_LIMIT_BYTES:
            upload = futures.upload(parts)
            identifier, payload = upload.id, upload.payload
        else:
            payload = serialization.to_payload(parts)
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


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if this call would. Skips functions with unknown or dynamic parameters."""
    try:
        if hasattr(function, "__signature__") or (isinstance(function, type) and type(function) is not type):
            return
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 (a builtin without signature, or user code that raises)
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = next((name for name in kwargs if name in NAMES and name not in signature.parameters), "")
        hint = f"; {given} is a task option: client.options({given}=...).submit(...)" if given else ""
        raise TypeError(f"{serialization.name_of(function)}() does not take these arguments: {error}{hint}") from None
