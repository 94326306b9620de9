"""What performs a core's commands, over sockets and in memory alike, and what runs it on an event loop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from scaler.net.transport import Command, Counters, Cut, Deliver, Input, LinkBlocked, Transmit


class _Core(Protocol):
    counters: Counters
    wake_at: float

    def step(self, inputs: Sequence[Input], now: float) -> list[Any]: ...


_CoreT = TypeVar("_CoreT", bound=_Core)


class Shell(Generic[_CoreT]):
    """Steps a core with what has happened, performs its commands, and gives its events to the component.

    Whatever the component sends while it handles events is transmitted once, at the end of the iteration.
    """

    def __init__(self, core: _CoreT, on_events: Callable[[list[Any]], None], clock: Callable[[], float]) -> None:
        self._core = core
        self._on_events = on_events
        self._clock = clock
        self._inputs: list[Input] = []
        """Inputs of the next step that come from this shell."""
        self._in_iteration = False
        self._closed = False

    @property
    def counters(self) -> Counters:
        """What went wrong so far."""
        return self._core.counters

    def _iterate(self, now: float) -> bool:
        """Step until there is nothing to do at this time; return whether there was any command."""
        did_anything = False
        step = self._core.step
        again = not self._closed
        self._in_iteration = True
        try:
            while again:
                inputs, self._inputs = self._inputs, []
                again = False
                for command in step(inputs, now):
                    did_anything = True
                    if isinstance(command, Transmit):
                        if not command.link.transmit(command.envelopes):
                            self._inputs.append(LinkBlocked(command.link))
                    elif isinstance(command, Deliver):
                        again = True
                        self._on_events(command.events)
                    else:
                        self._perform(command, now)
                if self._closed:
                    break
                again = again or bool(self._inputs)
        finally:
            self._in_iteration = False
        return did_anything

    def _perform(self, command: Command, _now: float) -> None:
        if isinstance(command, Cut):
            command.link.cut()


class Wakeups:
    """Calls `wake` on an event loop: once after any number of `soon`, at the time of `at`, and for descriptors."""

    __slots__ = ("_handle", "_loop", "_timer", "_timer_at", "_watched", "wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self.wake = wake
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        # uvloop's handle of a time that has passed cannot be asked for it.
        self._timer_at = math.inf
        self._watched: set[int] = set()

    def watch(self, descriptor: int, readable: Callable[[], None] | None = None) -> None:
        """Call `readable`, or wake, whenever this descriptor is readable."""
        self._loop.add_reader(descriptor, readable or self.wake)
        self._watched.add(descriptor)

    def watch_writing(self, descriptor: int, is_wanted: bool) -> None:
        """Wake when this descriptor is writable, or stop doing so."""
        if is_wanted:
            self._loop.add_writer(descriptor, self.wake)
        else:
            self._loop.remove_writer(descriptor)

    def unwatch(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def soon(self) -> None:
        """Wake in the next iteration of the loop."""
        if self._handle is None:
            self._handle = self._loop.call_soon(self._run_soon)

    def at(self, when: float) -> None:
        """Wake at this time of the loop's clock, or at an earlier one that was asked for before."""
        # Moving a timer on at every iteration would cost more than the idle wakeup when it fires.
        if when >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._run_timer)

    def after(self, seconds: float) -> None:
        """Wake when this time has passed, or earlier."""
        self.at(self._loop.time() + seconds)

    def close(self) -> None:
        """Wake no more."""
        for descriptor in list(self._watched):
            self.unwatch(descriptor)
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()

    def _run_soon(self) -> None:
        self._handle = None
        self.wake()

    def _run_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.wake()


class _Closable(Protocol):
    def close(self) -> None: ...


_LivingT = TypeVar("_LivingT", bound=_Closable)


class LoopThread(Generic[_LivingT]):
    """A thread with an event loop, on which one object is made, lives, and is closed."""

    def __init__(self, name: str, make: Callable[[], _LivingT]) -> None:
        """Start the thread. Raises what `make` raises there."""
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        made: Future[_LivingT] = Future()

        async def main() -> None:
            try:
                value = make()
            except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
                made.set_exception(error)
                return
            made.set_result(value)
            await self._stop.wait()
            value.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()
        try:
            self.value = made.result()
        except BaseException:
            self._thread.join()
            raise

    def close(self) -> None:
        """Close the object and end the thread."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
