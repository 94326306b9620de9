"""The calls that submit tasks, shared by clients and by their views with options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, Unpack
from weakref import WeakKeyDictionary

from scaler import serialization
from scaler.client.connect import processor
from scaler.client.extended import ExtendedCalls
from scaler.client.future import ScalerFuture
from scaler.client.futures import FutureTable
from scaler.client.loop import ClientLoop
from scaler.client.options import NAMES, OptionKeywords, Options, check_call, options_of, with_tag
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import FunctionReference, ObjectUpload, TaskTemplate
from scaler.errors import ClientClosedError, UsageError
from scaler.ids import content_id
from scaler.plugins import part_of
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Spec
from scaler.serialization import Serializer
from scaler.serialization.arguments import ArgumentOnly, Collection, Reduced
from scaler.serialization.exceptions import hide_frames, hiding_frames
from scaler.serialization.snapshot import FunctionSnapshot, modules_by_value, snapshot_of

MAX_NAME_CHARACTERS = 200
MAX_CACHED_FUNCTIONS = 1024
MAX_TEMPLATES_PER_FUNCTION = 64
MAX_RECENT_FUNCTIONS = 256
Packages = tuple[tuple[str, str], ...]


def _packages_of(function: Callable[..., Any]) -> Packages:
    try:
        found: Packages = part_of("environment", "packages", "").packages_of(function)
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
    """Serializes each function once and caches its templates by options.

    A function pickled by value is serialized again if its snapshot has changed, and for every task without a snapshot.
    """

    def __init__(self, futures: FutureTable, serializer: serialization.Serializer | None, code: bytes = b"") -> None:
        self._futures = futures
        self._serializer = serializer
        self.code = code
        self._shared: dict[str, FunctionReference] = {}
        """The registered serializer and uploaded code, by name of their Spec field. Registered on first use."""
        self._packages: WeakKeyDictionary[Callable[..., Any], Packages] = WeakKeyDictionary()
        self._cached: dict[int, CachedFunction] = {}
        self._by_value = modules_by_value()
        self._recent: dict[bytes, FunctionReference] = {}
        """Recently used functions, which are kept to avoid registering them again for the next task."""

    def template(self, function: Callable[..., Any], options: Options, parent: bytes) -> TaskTemplate:
        """Return the template of a task. Raises UsageError or SerializationError if the function cannot be sent."""
        observer = self._futures.observer
        if observer is not None and not options.context:
            options = options._replace(context=observer.context(options))
        by_value = modules_by_value()
        if by_value != self._by_value:  # functions pickled by name may now have to be pickled by value
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
        if options.environment:
            shared["environment"] = self._register([options.environment])
        fields = options._asdict()
        del fields["owner"]
        # Shortened and encodable, because the name is sent and shown.
        name = (options.name or serialization.name_of(cached.function))[:MAX_NAME_CHARACTERS]
        fields["name"] = name.encode("utf-8", "replace").decode()
        packages = () if options.environment else cached.packages  # the environment determines the versions
        fields |= {"parent": parent, "packages": packages, **{key: each.id for key, each in shared.items()}}
        spec = Spec(function=cached.reference.id, **fields)
        functions = cached.reference, *shared.values()
        template = TaskTemplate(spec, functions, serializer, options.owner)
        template.has_chunks = isinstance(cached.function, serialization.ManyCallsFunction)
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


Call = tuple[tuple[Any, ...], Mapping[str, Any]]
DISCONNECTED = "the client was disconnected"


def hiding_frames_of_methods(*except_: str) -> Callable[[type], type]:
    """Decorate a class so that exceptions of its constructor and public methods have no Scaler frames."""

    def decorated(kind: type) -> type:
        for name, method in [*vars(kind).items()]:
            is_public = name == "__init__" or not name.startswith("_")
            if is_public and isinstance(method, FunctionType) and name not in except_:
                setattr(kind, name, hiding_frames(method))
        return kind

    return decorated


@hiding_frames_of_methods("submit")
class TaskCalls(ArgumentOnly):
    """Submits tasks. The attributes belong to the client."""

    _takes_profiling: ClassVar = True
    _given: OptionKeywords = {}  # noqa: RUF012 (never changed)
    """Options of a view."""
    _options: Options
    _session: Any
    _loop: ClientLoop
    _futures: FutureTable
    _templates: TemplateTable
    _serializer: Serializer | None
    _is_closed: bool
    _is_nested: bool
    _is_in_process: bool
    _is_inside_task: bool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker. Returns immediately.

        All keyword arguments go to the function, except `profiling` and, in a durable session, `key`. Set options with
        `options`: `client.options(retries=5).submit(fn, 1)`.

        Args:
            fn: the function.
            args: arguments of the function. Futures and object references, at any depth, become their values.
            kwargs: keyword arguments of the function, and `profiling` and `key` as in `submit_verbose`. To pass
                arguments of these names to the function, use `submit_verbose`.

        Returns:
            The future of the call. If the session has a task with this key that has not failed, its future.

        Raises:
            SerializationError: The function or an argument cannot be pickled.
            LimitError: The scheduler or the object storage was full for `timeout_seconds`.
            ClientClosedError: The client is closed.
        """
        key = None
        options = self._options
        if kwargs:
            if self._session is not None:
                key = kwargs.pop("key", None)
            if self._takes_profiling and (profiling := kwargs.pop("profiling", None)) is not None:
                options = options._replace(profiling=profiling)
        try:
            return self._submit(fn, args, kwargs, options, key)
        except BaseException as error:
            hide_frames(error)
            raise

    def submit_verbose(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        tag: str | None = None,
        cache: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> ScalerFuture:
        """Call `fn(*args, **kwargs)` on a worker, with options. Returns immediately.

        Args:
            fn: the function.
            args: arguments of the function. Futures and object references, at any depth, become their values.
            kwargs: keyword arguments of the function.
            key: name of the task within a durable session. If the session has a task with this key that has not failed,
                returns its future, and nothing runs.
            tag: another tag, by which `futures` finds the task in a durable session.
            cache: return the cached result of an equal call, as `cache` does.
            options: options of the task:

                - memory: bytes reserved on the worker, as a number or a text such as "8GB" (powers of 1000) or "8GiB"
                  (powers of 1024).
                - cpus: part of the worker's slots, at least one slot.
                - gpu: number of whole GPUs, or a fraction of a shared one. CUDA_VISIBLE_DEVICES names them.
                - capabilities: requirements for the worker, such as `{"linux": None, "cuda": 12}`.
                - resources: capabilities that the task occupies, such as `{"fpga": 1}`. A list of names means one each.
                - limits: amounts that the task uses of the cluster's limits, such as `{"db": 1}`, or a list of names.
                - near: name of what the task keeps in memory, such as a model. Prefers workers that have run tasks with
                  this name.
                - priority: tasks with a higher number run first.
                - retries: number of further attempts after an exception that `retry_on` selects. With 0, the task
                  starts at most once.
                - retry_on: exception types, or a function that gets the exception and runs on the worker.
                - retry_delay: seconds before the next attempt, `Exponential(...)`, or a function of the number of the
                  failed attempt.
                - losses: number of further attempts after the worker or its process was lost. Default: `retries`.
                - preemptible: whether the running task may be stopped in favor of other tasks, to run again later. The
                task gets SIGTERM, and SIGKILL after 5 s, or after the number of seconds given instead of True.
                - timeout_seconds: time limit of one attempt. 0: none.
                - name: name of the task in monitors. Default: the function's name.
                - tags: names under which monitors show a progress bar, and which `cancel` accepts.
                - stream_output: print the output of the task here.
                - expected_seconds: estimated run time, for scaling until the first task has finished. 0: the median of
                  the cluster.
                - profiling: measure CPU time and peak memory for `ScalerFuture.profiling_info`.
                - environment: packages that workers install for the task: a list of requirements, the path of a
                  `requirements.txt` or `uv.lock`, or "auto" for the packages of this program. `[]`: none.

        Returns:
            The future of the call.

        Raises:
            UsageError: An option is invalid.
            SerializationError: The function or an argument cannot be pickled.
            LimitError: The scheduler or the object storage was full for `timeout_seconds`.
            ClientClosedError: The client is closed.
        """
        carried = self._options_of(options, "submit_verbose")
        check_call(args, kwargs)
        if cache:
            if key is not None or tag is not None:
                raise UsageError("a cached call does not belong to a session: leave out cache, or key and tag")
            return self._cached(fn, [(tuple(args), dict(kwargs or {}))], carried)[0]
        if tag is not None:
            carried = with_tag(carried, tag)
        return self._submit(fn, tuple(args), dict(kwargs or {}), carried, key, tag)

    def _submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options,
        key: str | None = None,
        tag: str | None = None,
    ) -> TaskFuture:
        if self._is_closed:
            raise ClientClosedError(DISCONNECTED)
        parent = self._parent() if self._is_inside_task else b""
        template = self._templates.template(fn, options, parent)
        shape = (len(args), *kwargs)
        if shape not in template.shapes and template.owner is None:  # executors store errors in futures
            check_arguments(fn, args, kwargs)
            template.shapes.add(shape)
        if key is None and (tag is None or self._session is None):
            return self._futures.submit(template, args, kwargs)
        found: TaskFuture = self._durable("keys").submit(template, args, kwargs, key, tag)
        return found

    def _durable(self, what: str) -> Any:
        if self._session is None:
            raise UsageError(f"{what} need a durable session: create the client with Client(session=...)")
        return self._session

    def _cached(self, fn: Callable[..., Any], calls: Sequence[Call], options: Options) -> list[TaskFuture]:
        found: list[TaskFuture] = part_of("durability", "client", "cache")._cached(self, fn, calls, options)
        return found

    def _parent(self) -> bytes:
        context = processor() if self._is_inside_task else None
        return b"" if context is None else context.task_id

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(DISCONNECTED)
        self._futures.check_open()

    @property
    def _whole(self) -> TaskCalls:
        return self

    def _options_of(self, given: OptionKeywords, verb: str) -> Options:
        return options_of(given, verb, self._options) if given else self._options


@hiding_frames_of_methods()
class PublicCalls(ExtendedCalls, TaskCalls):
    """All calls that submit tasks, including calls from extensions."""

    def options(self, **options: Unpack[OptionKeywords]) -> ClientView:
        """Return a view of this client that submits with these options. The view closes with the client.

        Args:
            options: options as in `submit_verbose`. Options of a single call override them.

        Raises:
            UsageError: An option is invalid.
        """
        self._check_open()
        return ClientView(self._whole, {**self._given, **options})


class ClientView(PublicCalls):
    """Submits tasks of a client with options. As an argument of a task, becomes a view of the task's own client."""

    _how_to_send = "pass it to submit as an argument, or inside one, and the task gets its own view"
    _takes_profiling = False

    def __init__(self, client: TaskCalls, given: OptionKeywords) -> None:
        vars(self).update(vars(client))
        self._client = client
        self._given = given
        self._options = options_of(given, "options", client._options)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"<options({given}) of {self._client!r}>"

    @property
    def _whole(self) -> TaskCalls:
        return self._client

    @property
    def _is_closed(self) -> bool:  # type: ignore[override]
        return self._client._is_closed

    def _options_of(self, given: OptionKeywords, verb: str) -> Options:
        return options_of({**self._given, **given}, verb, self._client._options) if given else self._options

    def _reduce_into(self, _collection: Collection, /) -> Reduced:
        return ClientView, (self._client, self._given)
