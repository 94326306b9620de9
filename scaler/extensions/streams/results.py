"""The values of a stream, in the client."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self
from weakref import WeakValueDictionary

from scaler.client.future import ScalerFuture, error_of
from scaler.client.loop import ClientLoop
from scaler.errors import WorkerLostError
from scaler.extensions.streams.messages import StreamTaken, StreamValue
from scaler.extensions.streams.producer import values_of
from scaler.serialization import Serializer, dump_value, load_value, parts_of, to_payload
from scaler.serialization.exceptions import hide_frames

ANSWER_BYTES = 8 * 1024 * 1024
"""Size of consumed values after which the task is notified."""
_CHECK_SECONDS = 60.0
_VALUE = "a value of the stream"
_AGAIN = "the task of the stream started again; with restart=True, the stream continues"


class Stream(Iterator[Any]):
    """The values of a stream, in order. `for` and `next` wait for each value. Threads may share a stream.

    Attributes:
        future: the future of the task, whose value is the generator's return value.
    """

    future: ScalerFuture

    def __init__(self, loop: ClientLoop, window: int, restart: bool, serializer: Serializer | None) -> None:
        self._id = loop.futures.ids.object()
        self._loop = loop
        self._condition = loop.futures.condition
        self._restarts = restart
        self._serializer = serializer
        self._answer_after = max(1, window // 2)
        self._values: deque[bytes] = deque()
        self._pieces: list[bytes] = []
        """The first pieces of the next value."""
        self._taken_bytes = self._received = self._taken = self._answered = 0
        self._run = self._task = b""
        self._has_ended = self._is_closed = False
        self._error: Exception | None = None

    def _start(self, submit: Callable[[bytes], ScalerFuture]) -> Self:
        streams = self._loop.on_message.get(StreamValue)
        if streams is None:
            streams = self._loop.on_message[StreamValue] = _Streams()
        assert isinstance(streams, _Streams)
        streams.by_id[self._id] = self
        self.future = submit(self._id)
        return self

    def __next__(self) -> Any:
        """Return the next value.

        Raises:
            StopIteration: The generator has ended, or the stream is closed.
            Exception: The generator's exception, after all earlier values.
            TaskError: The task was lost or did not complete; raised after all values received earlier.
        """
        futures = self._loop.futures
        futures.check_waitable()
        with futures.blocked(), self._condition:
            while not self._has_next:
                futures.wait_for(lambda: self._has_next, _CHECK_SECONDS)
            payload = self._values.popleft() if self._values else None
            if payload is not None:
                self._taken += 1
                self._taken_bytes += len(payload)
                if self._taken - self._answered >= self._answer_after or self._taken_bytes >= ANSWER_BYTES:
                    self._answer()
        if payload is not None:
            return load_value(parts_of(payload), self._serializer, _VALUE)
        if self._is_closed:
            raise StopIteration
        if self._error is not None:
            raise self._error
        try:
            returned = self.future.result()
        except BaseException as error:
            hide_frames(error)
            raise
        raise StopIteration(returned)

    def close(self) -> None:
        """Stop the task, and end the iteration. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._values.clear()
            self._condition.notify_all()
        self.future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if (future := getattr(self, "future", None)) is not None:
            self._loop.call_later(0, partial(_cancel, future))

    @property
    def _has_next(self) -> bool:
        """Whether `next` does not wait."""
        if self._values or self._is_closed or self._error is not None:
            return True
        return self.future.done() and (self._has_ended or error_of(self.future) is not None)

    def _take(self, message: StreamValue) -> None:
        """Process a message from the task. Called in the thread of the client."""
        with self._condition:
            is_again = self._run not in (b"", message.run)
            if is_again and not self._restarts:
                self._error = self._error or WorkerLostError(_AGAIN)
                self._loop.call_later(0, partial(_cancel, self.future))
            self._run, self._task = message.run, message.task
            is_new = message.number == self._received and self._error is None
            if is_new:
                self._add(message)
            elif not message.payload and message.number < self._received:
                self._has_ended = True  # the generator yielded fewer values after a loss
            if not is_new or self._has_ended:
                self._answer()
            self._condition.notify_all()

    def _add(self, message: StreamValue) -> None:
        if not message.payload:
            self._has_ended = True
            self._received += 1
            return
        if not message.piece:
            self._pieces.clear()
        if message.piece == len(self._pieces):
            self._pieces.append(message.payload)
            if not message.more:
                if not self._is_closed:
                    self._values.append(b"".join(self._pieces))
                self._pieces.clear()
                self._received += 1

    def _answer(self) -> None:
        self._answered, self._taken_bytes = self._taken, 0
        self._loop._call(self._loop._answer, StreamTaken(self._task, self._received, self._taken))


def _cancel(future: ScalerFuture) -> None:
    future.cancel()


class _Streams:
    """The open streams of a client."""

    def __init__(self) -> None:
        self.by_id: WeakValueDictionary[bytes, Stream] = WeakValueDictionary()

    def __call__(self, message: Any) -> None:
        stream = self.by_id.get(message.stream)
        if stream is not None:
            stream._take(message)


class LocalStream(Stream):
    """A stream with `processes=False`: each value is created when it is requested."""

    def __init__(
        self,
        submit: Callable[[Callable[..., Any], tuple[Any, ...]], ScalerFuture],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        serializer: Serializer | None,
    ) -> None:
        self._submit = submit
        self._serializer = serializer
        submit(_pass_on, args).result()
        self._made = values_of(function, function(*_passed.__dict__.pop("args")))

    def __next__(self) -> Any:
        try:
            value = next(self._made)
        except StopIteration as end:
            if "future" not in vars(self):
                self.future = self._submit(_end, (end.value, None))
            raise
        except Exception as error:
            self.future = self._submit(_end, (None, error))
            raise
        payload = to_payload(dump_value(value, self._serializer, _VALUE))
        return load_value(parts_of(payload), self._serializer, _VALUE)

    def __getattr__(self, name: str) -> Any:
        why = ": with processes=False, a stream has it after the last value" if name == "future" else ""
        raise AttributeError(f"a stream has no attribute {name!r}{why}")

    def close(self) -> None:
        self._made = iter(())

    def __del__(self) -> None:
        pass


_passed = threading.local()


def _pass_on(*args: Any) -> None:
    """Store the arguments of a task: copies, with the values of futures."""
    _passed.args = args


def _end(value: Any, error: Exception | None) -> Any:
    if error is not None:
        raise error
    return value
