"""TaskFuture: a ScalerFuture with the client's record of its task."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

from scaler import errors
from scaler.client.future import CANCELLED, FINISHED, PENDING, FutureOwner, ScalerFuture, Unloaded
from scaler.client.tasks import ClientTask, ObjectUpload, Reference, RemoteReference, Stage, TaskSettled, TaskTemplate
from scaler.errors import UsageError
from scaler.protocol.messages import Outcome, PayloadTag
from scaler.serialization import ATOMS, Buffer, Serializer, cannot_load, load_value, own_buffer, parts_of
from scaler.serialization.arguments import ByReference, Collection, DependencyFailedError, Reduced, load_again
from scaler.serialization.exceptions import PartFailedError, annotate, load_exception, locate
from scaler.texts import readable

_UNSENT: Final = Stage.UNSENT
_HOW_TO_MAKE = (
    "_exception", "_has_started", "_owner", "_profile", "_spec", "_state", "node", "payload", "references", "task_id",
    "template", "uploads",
)  # fmt: skip
"""Attributes copied from a finished future to keep its lineage without its value."""
_PICKLE: Final = int(PayloadTag.PICKLE)
_NOTHING: Final[tuple[bytes, None]] = b"", None
_LOCK_TYPE: Final = type(threading.Lock())


class TaskFuture(ScalerFuture, ByReference, ClientTask):
    """The class of all futures of a client. Users see ScalerFuture, its public interface and name."""

    __slots__ = (
        "_arrived",
        "_callbacks",
        "_exception",
        "_has_started",
        "_origin",
        "_owner",
        "_profile",
        "_result",
        "_spec",
        "_state",
        "_waiting",
        "node",
        "stored",
    )
    _how_to_send = "pass it to submit as an argument, or inside one, and the task gets its value"

    def __init__(  # does not call Future.__init__, to avoid its lock and lists
        self,
        owner: FutureOwner,
        task_id: bytes,
        template: TaskTemplate,
        payload: bytes,
        references: tuple[Reference, ...] = (),
        uploads: tuple[ObjectUpload, ...] = (),
    ) -> None:
        self._owner = owner
        self.task_id = task_id
        self.template = template
        self._spec = template.spec
        self.payload = payload
        self.references = references
        self.uploads = uploads
        self.stage = _UNSENT
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiting = None
        self._callbacks = None
        self.stored: RemoteReference | None = None
        """The stored value, which the storage keeps while this future lives."""
        self._profile = 0
        self._has_started = False
        self.node: tuple[Hashable, ...] | None = None

    def __dir__(self) -> list[str]:
        return [*dir(ScalerFuture), "task_id"]

    # -- as an argument

    @property
    def _reference_id(self) -> bytes:
        """The id by which tasks reference the value: the task's, or the stored result's."""
        return self.task_id if self.stored is None or self.stored.is_invalid else self.stored.id

    def _known_value(self, collection: Collection, /) -> tuple[Any] | None:
        """Return a small local value, or None if the value must be referenced. Raises DependencyFailedError."""
        if self._state is not PENDING and (not self.is_stored or self._owner is not collection.owner):
            if type(self._result) is Unloaded:
                self._load()
            if self._state is CANCELLED or self._exception is not None:
                raise DependencyFailedError(self._exception, self)
            return (self.copy(),)
        if self._owner is not collection.owner:
            raise UsageError(f"{self!r} belongs to another client and has not ended: pass its result() instead")
        return None

    def _reduce_into(self, collection: Collection, /) -> Reduced:
        payload = self.pickled
        if payload and not self.is_stored and self._owner is collection.owner:
            return load_again, (payload,)
        return super()._reduce_into(collection)

    @property
    def pickled(self) -> bytes:
        """The received pickle of a small mutable value; otherwise empty."""
        payload, serializer = getattr(self, "_arrived", _NOTHING)  # rarely set, because that would slow every submit
        return payload if serializer is None else b""

    def keep(self, payload: bytes, serializer: Serializer | None) -> None:
        """Keep the received payload of a small value, because the program may change the loaded value."""
        self._arrived = payload, serializer

    def copy(self) -> Any:
        payload, serializer = getattr(self, "_arrived", _NOTHING)
        return load_value(parts_of(payload), serializer) if payload else self._result

    @property
    def delivers(self) -> bool:
        return self._spec.deliver

    @property
    def is_stored(self) -> bool:
        return self.stored is not None and not self.stored.is_invalid

    @property
    def has_users(self) -> bool:
        return getattr(self, "is_used", False)

    @property
    def _has_stayed(self) -> bool:
        return self.stage is Stage.KEPT and type(self._result) is Unloaded

    def stay(self) -> None:
        """Leave the value in the cluster. Keeps the lineage for a rerun of the task, without values of inputs."""
        self.stage = Stage.KEPT
        self.references = tuple(each._lineage() if isinstance(each, TaskFuture) else each for each in self.references)

    def _lineage(self) -> TaskFuture:
        if self._state is PENDING:
            return self
        made = TaskFuture.__new__(TaskFuture)
        for name in _HOW_TO_MAKE:
            setattr(made, name, getattr(self, name))
        made._result = made._waiting = made._callbacks = made.stored = None
        made.stage = Stage.KEPT
        return made

    @property
    def must_embed(self) -> bool:
        """Whether tasks must contain the value, because they can no longer reference it."""
        return self._state is not PENDING and not self.is_stored

    # -- for the client, under its lock

    def settle(self, value: Any, exception: BaseException | None, profile: int | tuple[int, int, int] = 0) -> bool:
        """End with a value or exception; return whether `run_callbacks` is due. profile: see `Profile`."""
        if self._state is not PENDING:
            return False
        self._profile = profile
        self._result = value
        if isinstance(exception, CancelledError):
            self._state = CANCELLED
        else:
            self._exception = None if exception is None else self._named(exception)
            self._state = FINISHED
        waiting = self._waiting
        if waiting is not None:
            for waiter in waiting:
                if type(waiter) is _LOCK_TYPE:
                    waiter.release()
                elif (
                    getattr(waiter, "stop_on_exception", False)
                    and type(self._result) is Unloaded
                    and self.stage is not Stage.KEPT
                ):
                    self._load()  # the outcome is unknown until the value is loaded
                    (waiter.add_result if self._exception is None else waiter.add_exception)(self)
                elif self._state is CANCELLED:
                    waiter.add_cancelled(self)
                elif exception is not None:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            # Threads remove their own waiters of concurrent.futures.
            self._waiting = [waiter for waiter in waiting if type(waiter) is not _LOCK_TYPE] or None
        return self._callbacks is not None

    def _load(self) -> None:
        unloaded = self._result
        if type(unloaded) is not Unloaded:
            return  # another thread has loaded it
        with unloaded.lock:
            if self._result is unloaded:
                value, exception = unloaded.load()
                self._exception = None if exception is None else self._named(exception)
                self._result = value
                if type(value) in ATOMS:
                    self._arrived = _NOTHING

    def _named(self, exception: BaseException) -> BaseException:
        """Return the exception with notes: the failed node of the graph, and the failed input that kept this task from
        running."""
        if type(exception) is PartFailedError:
            if self.node is not None:
                self.node = (self.node[exception.number],)
            exception = exception.raised
        failed = (each.failed_first for each in self.references if isinstance(each, TaskFuture))
        origin = next(filter(None, failed), self)
        if origin.node is not None:
            locate(exception, f"{origin._label} of the graph")
        if origin is not self:
            self._origin = origin
            annotate(exception, f"{self._label} did not run because its input {origin._label} failed")
        return exception

    @property
    def failed_first(self) -> TaskFuture | None:
        """The future that failed first: this one or a (transitive) input; None if this one has not failed."""
        # Not an attribute of every task, because setting it would slow every submit.
        return None if self._exception is None else getattr(self, "_origin", self)

    @property
    def _label(self) -> str:
        if self.node is None:
            return f"{self._spec.name} ({self.task_id.hex()})"
        return f"node {self.node[0]!r}" + (" or another node of its chunk" if len(self.node) > 1 else "")

    def _cancel(self) -> None:
        self._owner.put(TaskSettled(self))  # first: after a Ctrl-C here, the client's thread ends this future
        self.settle(None, CancelledError())


# Shows the public name in error texts and `help`.
for _name in ("__module__", "__name__", "__qualname__"):
    setattr(TaskFuture, _name, getattr(ScalerFuture, _name))


def load_outcome(
    outcome: int, payload: Buffer, serializer: Serializer | None, parts: Sequence[memoryview] | None = None
) -> tuple[object, BaseException | None]:
    """Return value and exception of a task, one of them None. parts: parts of a stored payload, which are made
    writable.

    Loading errors become the exception, except KeyboardInterrupt: the next reader loads the value again.
    """
    if outcome != _SUCCESS:
        return None, _exception(Outcome(outcome), bytes(payload))
    if not payload:
        return None, None
    try:
        if serializer is None and parts is None and payload[0] == _PICKLE:
            return pickle.loads(payload), None  # noqa: S301 (peers of a cluster run each other's code by design)
        loaded = parts_of(payload) if parts is None else [own_buffer(part) for part in parts]
        return load_value(loaded, serializer), None
    except errors.ScalerError as error:
        return None, error
    except BaseException as error:
        # In other threads, such as the client's, user code must not end the thread.
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return None, cannot_load("the result", error)


_SUCCESS = Outcome.SUCCESS
_ERRORS: dict[Outcome, type[errors.TaskError]] = {
    Outcome.TIMED_OUT: errors.TaskTimeoutError,
    Outcome.REJECTED: errors.TaskRejectedError,
    Outcome.WORKER_LOST: errors.WorkerLostError,
    Outcome.PROCESSOR_DIED: errors.ProcessorDiedError,
    Outcome.POISON: errors.PoisonTaskError,
    Outcome.OBJECT_LOST: errors.ObjectLostError,
    Outcome.MEMORY_LIMIT: errors.MemoryLimitError,
}


def _exception(outcome: Outcome, payload: bytes) -> BaseException:
    if outcome in (Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY):
        try:
            loaded = load_exception(payload)
            if type(loaded) is PartFailedError:
                loaded.raised = load_exception(loaded.shown)
            return loaded
        except errors.ProtocolError as error:
            return error
        except BaseException as error:  # noqa: BLE001 (as above)
            return cannot_load("the exception of the task", error)
    if outcome == Outcome.CANCELLED:
        return CancelledError()
    if outcome not in _ERRORS:
        return errors.ProtocolError(f"a task that has ended has the outcome {outcome.name}")
    return _ERRORS[outcome](readable(payload))
