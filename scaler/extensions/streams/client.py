"""`Client.stream`, and the client side of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self, Unpack, cast
from weakref import WeakValueDictionary

from scaler.client.future import Callback, ScalerFuture, error_of
from scaler.client.loop import ClientLoop
from scaler.client.options import OptionKeywords, check_integer
from scaler.client.task_calls import TaskCalls, check_arguments, hiding_frames_of_methods
from scaler.errors import UsageError, WorkerLostError
from scaler.extensions.streams.messages import StreamTaken, StreamValue
from scaler.extensions.streams.producer import Producer, values_of
from scaler.serialization import Serializer, dump_value, load_value, name_of, parts_of, to_payload
from scaler.serialization.exceptions import hide_frames

WINDOW = 64
ANSWER_BYTES = 8 * 1024 * 1024
"""Total size of consumed values at which the task is notified."""
_CHECK_SECONDS = 60.0
_VALUE = "a value of the stream"
_AGAIN = "the task of the stream restarted; with restart=True, the stream would continue"


@hiding_frames_of_methods()
class StreamCalls(TaskCalls):
    def stream(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        window: int = WINDOW,
        restart: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> Stream:
        """Run the generator `fn(*args)` as a task, and iterate over its values while it runs.

        ```python
        for line in client.stream(read_lines, "/data/log.txt"):
            print(line)
        ```

        Closing or dropping the stream stops the task.

        Args:
            fn: a generator function, or a function that returns another iterable.
            args: arguments of the function, as in `submit`. Pass keyword arguments with `functools.partial`.
            window: maximum number of unconsumed values. At this limit, the task waits and lends its slot to other
            tasks. Unconsumed values are also limited to 32 MiB, unless a single value is larger.
            restart: if the worker is lost, rerun the generator and skip the values that have arrived. For generators
            that yield the same values each time. By default, the loss is an error.
            options: options of the task, as in `submit_verbose`. `retry_on` and `preemptible` need `restart`.

        Returns:
            An iterator. Its `future` is the future of the task, whose value is the generator's return value.

        Raises:
            UsageError: An option is invalid, or the client has a durable session.
            SerializationError: The function or an argument cannot be pickled.
        """
        carried = self._options_of(options, "stream")
        check_integer("window", window, 1)
        if self._session is not None:
            raise UsageError("streams end with the program: use a client without a durable session")
        for option in ("retry_on", "preemptible"):
            if getattr(carried, option) and not restart:
                raise UsageError(f"{option} reruns a generator: pass restart=True as well, or omit it")
        check_arguments(fn, args, {})
        if self._is_in_process:
            return LocalStream(partial(self._submit, kwargs={}, options=carried), fn, args, self._serializer)
        name = carried.name or name_of(fn)
        call = self._loop.calls.begin("stream", name, 1, has_chunks=False)
        carried = carried._replace(name=name, retries=carried.retries if restart else 0, call=call.number)
        producer = Producer(fn, window, self._serializer)
        stream = Stream(self._loop, window, restart, self._serializer)
        return stream._start(lambda identifier: self._submit(producer, (identifier, *args), {}, carried))


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
        self._earlier: set[bytes] = set()
        """Lost runs. Their late messages are ignored."""
        self._has_ended = self._is_closed = False
        self._error: Exception | None = None
        self._changed: Callback | None = None

    def _start(self, submit: Callable[[bytes], ScalerFuture]) -> Self:
        cast("_Streams", self._loop.on_message.setdefault(StreamValue, _Streams()))[self._id] = self
        self.future = submit(self._id)
        return self

    def _observe(self, changed: Callback) -> None:
        """Call a function after each change, from any thread."""
        self._changed = changed
        self.future.add_done_callback(changed)

    def __next__(self) -> Any:
        """Return the next value.

        Raises:
            StopIteration: The generator has ended, or the stream is closed.
            Exception: The generator's exception, after all earlier values.
            TaskError: The task was lost or did not complete. Raised after all values received before.
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
            if isinstance(error, StopIteration | StopAsyncIteration):  # would look like the end of the stream
                raise RuntimeError(f"the function of the stream raised {type(error).__name__}") from error
            raise
        raise StopIteration(returned)

    def close(self) -> None:
        """Stop the task and end the iteration. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._values.clear()
            self._condition.notify_all()
        self.future.cancel()

    def __reduce__(self) -> Any:
        raise TypeError("a stream cannot be sent: pass its values, or the future of its return value")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if (future := getattr(self, "future", None)) is not None:
            self._loop.call_later(0, future.cancel)

    @property
    def _has_next(self) -> bool:
        """Whether `next` returns without waiting."""
        return not self._is_drained or (self.future.done() and (self._has_ended or error_of(self.future) is not None))

    @property
    def _is_drained(self) -> bool:
        """Whether `next` needs another message from the task."""
        return not (self._values or self._is_closed or self._error is not None)

    def _take(self, message: StreamValue) -> None:
        """Process a message from the task. Called in the thread of the client."""
        with self._condition:
            if message.run in self._earlier:
                return
            if message.run != self._run:
                self._earlier.add(self._run)
                if self._run and not self._restarts:
                    self._error = self._error or WorkerLostError(_AGAIN)
                    self._loop.call_later(0, self.future.cancel)
                self._run, self._task, self._has_ended = message.run, message.task, False
            is_new = message.number == self._received and self._error is None
            if not message.payload:
                self._has_ended = message.number <= self._received  # less if a restarted generator yields fewer values
            elif is_new:
                self._add(message)
            if not is_new or self._has_ended:
                self._answer()
            self._condition.notify_all()
        if self._changed is not None:
            self._changed(self.future)

    def _add(self, message: StreamValue) -> None:
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
        taken = StreamTaken(self._task, self._received + self._has_ended, self._taken, self._run)
        self._loop._call(self._loop._answer, taken)


class _Streams(WeakValueDictionary[bytes, Stream]):
    """The open streams of a client."""

    def __call__(self, message: Any) -> None:
        if (stream := self.get(message.stream)) is not None:
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
        self._made = values_of(function, function(*submit(_copied, args).result()))

    def __next__(self) -> Any:
        try:
            value = next(self._made)
        except Exception as error:
            if not hasattr(self, "future"):
                self.future = self._submit(_end, (error,))
            raise
        payload = to_payload(dump_value(value, self._serializer, _VALUE))
        return load_value(parts_of(payload), self._serializer, _VALUE)

    def close(self) -> None:
        self._made = iter(())

    def __del__(self) -> None:
        pass


def _copied(*args: Any) -> tuple[Any, ...]:
    """Return a task's arguments as the task receives them: copied, with futures replaced by values."""
    return args


def _end(error: Exception) -> Any:
    if isinstance(error, StopIteration):
        return error.value
    raise error
