"""The client's method that returns a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from scaler.client.options import OptionKeywords, check_integer
from scaler.client.task_calls import TaskCalls, check_arguments, hiding_frames_of_methods
from scaler.errors import UsageError
from scaler.extensions.streams.producer import Producer
from scaler.extensions.streams.results import LocalStream, Stream
from scaler.serialization import name_of

WINDOW = 64


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
            window: maximum number of values ahead of those consumed so far. Beyond this number, the task
                waits and lends its slot to other tasks. These values take at most 32 MiB, or consist of one value.
            restart: if the worker is lost, run the generator again, and skip the values that have arrived. For
                generators that yield the same values each time. Otherwise the loss is an error.
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
                raise UsageError(f"{option} runs a generator again: pass restart=True as well, or leave it out")
        check_arguments(fn, args, {})
        if self._is_in_process:
            return LocalStream(partial(self._submit, kwargs={}, options=carried), fn, args, self._serializer)
        name = carried.name or name_of(fn)
        call = self._loop.calls.begin("stream", name, 1, has_chunks=False)
        carried = carried._replace(name=name, losses=carried.losses if restart else 1, call=call.number)
        producer = Producer(fn, window, self._serializer)
        stream = Stream(self._loop, window, restart, self._serializer)
        return stream._start(lambda identifier: self._submit(producer, (identifier, *args), {}, carried))
