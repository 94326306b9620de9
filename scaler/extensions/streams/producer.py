"""Runs a generator as a task, and sends its values to the client while it runs. The task keeps each value until the
client has received it, and resends it after a scheduler restart. The task pauses while more than `window` values, or 32
MiB, are unconsumed. While paused, it lends its slot to other tasks.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import Any

from scaler.errors import ClientClosedError, UsageError
from scaler.extensions.streams.messages import MAX_PIECE_BYTES, StreamTaken, StreamValue
from scaler.ids import new_peer_id
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Acknowledge, Goodbye, Welcome
from scaler.serialization import Serializer, dump_value, name_of, to_payload
from scaler.worker import frames
from scaler.worker.processor.context import ProcessorContext, current

MAX_AHEAD_BYTES = 32 * 1024 * 1024
"""Maximum bytes of unconsumed values. Beyond this, the task waits."""
_WAITS = "waits until its values are consumed"


class Producer:
    """The function of a stream's task."""

    def __init__(self, function: Callable[..., Any], window: int, serializer: Serializer | None) -> None:
        self._function = function
        self._window = window
        self._serializer = serializer

    def __call__(self, stream: bytes, *args: Any) -> Any:
        """Return the generator's return value, once the client has received all values."""
        context = current()
        if context is None:
            raise UsageError("a stream needs a worker that runs tasks in its own processes; this worker does not")
        sender = ValueSender(context, stream, self._window)
        with sender.channel:
            try:
                return self._send(sender, values_of(self._function, self._function(*args)))
            finally:  # an exception follows the earlier values
                sender.end()

    def _send(self, sender: ValueSender, values: Iterator[Any]) -> Any:
        while True:
            try:
                value = next(values)
            except StopIteration as end:
                return end.value
            payload = to_payload(dump_value(value, self._serializer, "a value of the stream"))
            del value
            sender.send(payload)


def values_of(function: Callable[..., Any], made: object) -> Iterator[Any]:
    """Return an iterator over a function's return value. Raises TypeError if the value is not iterable."""
    if isinstance(made, Iterable) and not isinstance(made, AsyncIterator):
        return iter(made)
    raise TypeError(
        f"{name_of(function)} returned {type(made).__name__}, but client.stream needs a generator function, "
        "or a function that returns another iterable"
    )


class ValueSender:
    """A channel through the worker to the client of the running task."""

    def __init__(self, context: ProcessorContext, stream: bytes, window: int) -> None:
        self._context = context
        self._stream = stream
        self._window = window
        self._run = new_peer_id()
        self.channel = context.open_channel(self._run)
        self._kept: deque[tuple[int, list[bytes]]] = deque()
        """Numbers and encoded messages of unreceived values, and of the last value."""
        self._ahead: deque[tuple[int, int]] = deque()
        """Numbers and sizes of unconsumed values."""
        self._ahead_bytes = 0
        self._number = self._received = 0

    def send(self, payload: bytes) -> None:
        """Send a value. Waits first if the client is behind."""
        self._wait(lambda: len(self._ahead) < self._window and self._ahead_bytes < MAX_AHEAD_BYTES)
        pieces = [payload[at : at + MAX_PIECE_BYTES] for at in range(0, len(payload), MAX_PIECE_BYTES)]
        self._send(pieces)
        self._ahead.append((self._number, len(payload)))
        self._ahead_bytes += len(payload)
        self._number += 1

    def end(self) -> None:
        """Send the end of the stream, and wait until the client has received it."""
        self._send([b""])
        self._wait(lambda: self._received > self._number)

    def _send(self, pieces: list[bytes]) -> None:
        last = len(pieces) - 1
        messages = [
            encode(
                StreamValue(self._stream, self._context.task_id, self._run, self._number, piece, piece < last, payload)
            )
            for piece, payload in enumerate(pieces)
        ]
        self._kept.append((self._number, messages))
        for message in messages:
            self._transmit(message)

    def _transmit(self, message: bytes) -> None:
        try:
            frames.send(self.channel, message)
        except OSError as error:
            raise ClientClosedError("the channel of this stream has closed") from error

    def _wait(self, is_met: Callable[[], bool]) -> None:
        while self._read(socket.MSG_DONTWAIT):
            pass
        with nullcontext() if is_met() else self._context.waiting(_WAITS):
            while not is_met():
                self._read(0)

    def _read(self, flags: int) -> bool:
        try:
            body = frames.receive(self.channel, flags)[0]
        except BlockingIOError:
            return False
        except OSError:
            body = b""
        if not body:
            raise ClientClosedError("the channel of this stream has closed")
        message = decode(body)
        if isinstance(message, Goodbye):  # for example, the scheduler lacks this extension
            raise ClientClosedError(f"the channel of this stream has closed: {message.text}")
        if isinstance(message, StreamTaken):
            self._received = max(self._received, message.received)
            while len(self._kept) > 1 and self._kept[0][0] < self._received:
                self._kept.popleft()
            while self._ahead and self._ahead[0][0] < message.taken:
                self._ahead_bytes -= self._ahead.popleft()[1]
        elif isinstance(message, Welcome):  # the scheduler has restarted, and may have lost messages in transit
            # Resending at least the last value makes the client answer.
            for each in (encode(Acknowledge()), *chain.from_iterable(messages for _, messages in self._kept)):
                self._transmit(each)
        return True
