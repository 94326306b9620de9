"""From arguments to a task in the session: serialize in the caller's thread, embed what has ended meanwhile, append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, cast

from scaler.client.future import ScalerFuture
from scaler.client.loop import ClientLoop
from scaler.client.object_reference import InStorage
from scaler.client.tasks import Kind, Reference, Upload
from scaler.protocol.messages import INLINE_LIMIT_BYTES, PayloadTag
from scaler.serialization import (
    DependencyFailedError,
    Parts,
    dump_arguments,
    size_of,
    to_payload,
)


class Submission:
    """Makes tasks of one client. Safe to use from any thread."""

    __slots__ = ("_futures", "_loop")

    def __init__(self, loop: ClientLoop) -> None:
        self._loop = loop
        self._futures = loop.futures

    def submit(self, kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ScalerFuture:
        """Make a task and return its future. A future in the arguments that has failed makes this one fail alike.

        Raises SerializationError, LimitError, ClientClosedError, or the error of a failed upload.
        """
        futures = self._futures
        while True:
            future = self.prepare(kind, args, kwargs)
            if future.done() or futures.submit(future):
                return future

    def prepare(self, kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ScalerFuture:
        """Make a task without submitting it. Its future has ended already when one in the arguments has failed."""
        try:
            parts, found = dump_arguments(args, kwargs, kind.serializer, self._futures, kind.spec.name)
        except DependencyFailedError as error:
            return self._failed(kind, error.exception)
        uploads: tuple[Upload, ...] = ()
        references: tuple[Reference, ...] = ()
        if found:
            references = cast("tuple[Reference, ...]", tuple(found))
            uploads = tuple(reference.upload for reference in found if isinstance(reference, InStorage))
        if kind.serializer is None and len(parts) == 1 and len(parts[0]) <= INLINE_LIMIT_BYTES:
            payload = cast("bytes", parts[0])
        elif size_of(parts) <= INLINE_LIMIT_BYTES:
            payload = to_payload(parts, PayloadTag.PARTS if kind.serializer is None else PayloadTag.ARGUMENTS)
        else:
            upload = self._loop.objects.upload(parts)
            payload = upload.payload
            uploads = (*uploads, upload)
            references = (*references, upload)
        return ScalerFuture(self._futures, self._futures.ids.task(), kind, payload, references, uploads)

    def submit_all(self, futures: Sequence[ScalerFuture]) -> bool:
        """Submit prepared tasks together. Returns False, and submits none, when they must be prepared again."""
        return self._futures.submit_all([future for future in futures if not future.done()])

    def _failed(self, kind: Kind, exception: BaseException | None) -> ScalerFuture:
        future = ScalerFuture(self._futures, self._futures.ids.task(), kind, b"")
        future.forget()
        future.settle(None, CancelledError() if exception is None else exception)
        return future

    def finished(self, kind: Kind, value: object) -> ScalerFuture:
        """Return a future that has its value already."""
        future = ScalerFuture(self._futures, self._futures.ids.task(), kind, b"")
        future.forget()
        future.settle(value, None)
        return future

    def upload(self, parts: Parts) -> Upload:
        """Put parts into the storage, for several tasks."""
        return self._loop.objects.upload(parts)
