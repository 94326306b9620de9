"""A machine in simulated time that runs the real journals: an event loop, threads, and a disk with torn writes.

The journals write real files. A `Machine` replaces the system functions that they call, so it knows which bytes the
disk has confirmed. A *kill* of a process leaves its files intact. A *power loss* ends all processes, and loses any part
of the unconfirmed bytes.

    with Machine(Random(1)) as machine:
        process = machine.start()
        durable = process.run(lambda: DurableSteps(machine.path / "scheduler", perform, on_failure))
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import queue
import subprocess
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import scaler.journal.directory
import scaler.journal.journal
import scaler.object_storage.durable
from scaler.extensions.durability.steps import DurableSteps
from scaler.journal.journal import Journal

SIMULATED = "scaler-simulated-"
"""Prefix of directories with simulated disks."""
SECTOR_BYTES = 512
SEGMENT_BYTES = COMPACT_BYTES = 8 * 1024
MIN_FILE_BYTES = 64
"""Objects of at least this size have separate files."""
SYNC_SECONDS = 0.0002, 0.05
COMPACTION_SECONDS = 0.05, 1.0

_Result = TypeVar("_Result")


class Write(NamedTuple):
    """Bytes in a file that the disk has not confirmed. number: counts the writes to the disk."""

    number: int
    path: str
    start: int
    end: int


class _Blocked(Exception):  # noqa: N818 (not an error)
    """A simulated thread waits. It restarts at its top, where it reads a queue, when there may be work."""


class _Module:
    """A module with some simulated functions."""

    def __init__(self, real: ModuleType, **simulated: Any) -> None:
        self._real = real
        vars(self).update(simulated)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedProcess:
    """A process with an event loop and threads for its journals."""

    def __init__(self, machine: Machine) -> None:
        self.is_alive = True
        self.descriptors: set[int] = set()
        self.compactions: list[_Compaction] = []
        self._machine = machine
        self._threads: list[_Thread] = []

    def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function as code in this process."""
        machine = self._machine
        before, machine.current = machine.current, self
        try:
            return function()
        finally:
            machine.current = before

    def end(self) -> None:
        """End the process now, even during writes of its threads. Idempotent."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._machine.cuts_off = True
        self.run(self.run_threads)
        self._machine.cuts_off = False
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        while self.compactions:
            self.compactions.pop().cut_off()

    # -- event loop

    def time(self) -> float:
        return self._machine.now()

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> _Timer:
        return self.call_later(0.0, callback, *arguments)

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> _Timer:
        return self.call_later(0.001 * self._machine.random.random(), callback, *arguments)

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> _Timer:
        timer = _Timer()

        def fire() -> None:
            if self.is_alive and not timer.is_cancelled:
                self.run(partial(callback, *arguments))

        self._machine.later(self._machine.now() + seconds, fire)
        return timer

    # -- threads

    def begin(self, thread: _Thread) -> None:
        self._threads.append(thread)
        self.call_soon(self.run_threads)

    def run_threads(self) -> None:
        """Let each thread do its pending work."""
        for thread in list(self._threads):
            try:
                thread.target(*thread.arguments)
            except _Blocked:
                continue
            self._threads.remove(thread)


class _Thread:
    def __init__(
        self, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "", daemon: bool = False
    ) -> None:
        del name, daemon
        self.target = target
        self.arguments = args

    def start(self) -> None:
        Machine.running().begin(self)


class _Queue:
    """The queue of a thread that needs time for each item."""

    def __init__(self) -> None:
        self._process = Machine.running()
        self._items: deque[tuple[float, Any]] = deque()

    def put(self, item: Any) -> None:
        machine = Machine.active()
        begun = self._items[-1][0] if self._items else machine.now()
        ended = begun + machine.random.uniform(*SYNC_SECONDS)
        self._items.append((ended, item))
        self._process.call_later(ended - machine.now(), self._process.run_threads)

    def get(self) -> Any:
        machine = Machine.active()
        if not self._items or (self._items[0][0] > machine.now() + 1e-9 and not machine.cuts_off):
            raise _Blocked
        return self._items.popleft()[1]


class _Compaction:
    """A compacting process, which does all of its work at its end. If killed, it leaves an incomplete snapshot."""

    def __init__(self, command: list[str], **_: Any) -> None:
        machine = Machine.active()
        module, path, number = command[2:]
        self.returncode = 0
        self._compact = importlib.import_module(module).compact
        self._path = Path(path)
        self._number = int(number)
        self._process = Machine.running()
        self._process.compactions.append(self)
        seconds = machine.random.uniform(*COMPACTION_SECONDS)
        self._ends_at = machine.now() + seconds
        self._process.call_later(seconds, self._process.run_threads)

    def communicate(self) -> tuple[None, str]:
        machine = Machine.active()
        if machine.now() < self._ends_at - 1e-9:
            raise _Blocked
        self._process.compactions.remove(self)
        try:
            machine.check()
            self._compact(self._path, self._number)
            machine.compactions += 1
        except OSError as error:
            self.cut_off()
            self.returncode = 1
            return None, str(error)
        return None, ""

    def cut_off(self) -> None:
        (self._path / f"{self._number:08d}.new").write_bytes(b"the beginning of a snapshot")


class Machine:
    """One machine. Enter it to run journals on it. `now` and `later` are those of the simulated world."""

    _active: Machine | None = None

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now: Callable[[], float] = lambda: 0.0
        self.later: Callable[[float, Callable[[], None]], None] = lambda _at, _action: None
        self.current: SimulatedProcess | None = None
        self.failure = 0
        """The disk's error: ENOSPC rejects more space than reserved, EIO all writes. 0: no error."""
        self.writes = 0
        """Number of writes."""
        self.cuts_off = False
        """A process exits: its threads finish their work up to any write or the first confirmation."""
        self.compactions = self.torn_bytes = 0
        self._unconfirmed: list[Write] = []
        self._processes: list[SimulatedProcess] = []
        self._context = ExitStack()

    def __enter__(self) -> Machine:
        memory = Path("/dev/shm")
        directory = tempfile.TemporaryDirectory(prefix=SIMULATED, dir=memory if memory.is_dir() else None)
        self.path = Path(self._context.enter_context(directory))
        system = _Module(
            os,
            open=self._open,
            close=self._close,
            pwrite=self._pwrite,
            fdatasync=self._confirm,
            fsync=self._confirm,
            posix_fallocate=self._reserve,
        )
        shell = {
            "os": system,
            "asyncio": _Module(asyncio, get_running_loop=Machine.running),
            "threading": _Module(threading, Thread=_Thread),
            "queue": _Module(queue, SimpleQueue=_Queue),
        }
        processes = {"subprocess": _Module(subprocess, Popen=_Compaction)}
        small = partial(Journal, segment_bytes=SEGMENT_BYTES, compact_bytes=COMPACT_BYTES)
        patches: list[tuple[ModuleType | type, dict[str, Any]]] = [
            (scaler.journal.directory, {"os": system}),
            (scaler.journal.journal, {name: each for name, each in shell.items() if name != "os"} | processes),
            (scaler.object_storage.durable, {**shell, "Journal": small, "MIN_FILE_BYTES": MIN_FILE_BYTES}),
            (DurableSteps, {"make_journal": small}),
        ]
        for target, replaced in patches:
            self._context.enter_context(mock.patch.multiple(target, **replaced))
        Machine._active = self
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        Machine._active = None
        self._context.close()

    @classmethod
    def active(cls) -> Machine:
        assert cls._active is not None, "there is no simulated machine"
        return cls._active

    @classmethod
    def running(cls) -> SimulatedProcess:
        """Return the process whose code is running."""
        process = cls.active().current
        assert process is not None, "called outside of a simulated process"
        return process

    def start(self) -> SimulatedProcess:
        """Start a process."""
        process = SimulatedProcess(self)
        self._processes = [*(each for each in self._processes if each.is_alive), process]
        return process

    # -- disk

    def lose_power(self) -> None:
        """End all processes. Unconfirmed bytes are lost: all of them, the latest, or any sectors."""
        for process in self._processes:
            process.end()
        writes = [write for write in self._unconfirmed if Path(write.path).exists()]
        self._unconfirmed.clear()
        match self.random.choice(("all", "last", "sectors")):
            case "all":
                lost = writes
            case "last":
                lost = self._last_of(writes)
            case _:
                lost = self._sectors_of(writes)
        for _, path, start, end in lost:
            with Path(path).open("rb+") as file:
                file.seek(start)
                file.write(bytes(end - start))
            self.torn_bytes += end - start

    def _last_of(self, writes: list[Write]) -> list[Write]:
        kept = self.random.randint(0, sum(write.end - write.start for write in writes))
        lost = []
        for write in writes:
            size = write.end - write.start
            if size > kept:
                # A header fits in one sector, so it is complete or missing.
                lost.append(write._replace(start=write.start + (kept if write.start else 0)))
            kept = max(0, kept - size)
        return lost

    def _sectors_of(self, writes: list[Write]) -> list[Write]:
        """Return parts of writes: each sector has any number of its first writes."""
        sectors: defaultdict[tuple[str, int], list[Write]] = defaultdict(list)
        for write in writes:
            for sector in range(write.start // SECTOR_BYTES, (write.end - 1) // SECTOR_BYTES + 1):
                start, end = max(write.start, sector * SECTOR_BYTES), min(write.end, (sector + 1) * SECTOR_BYTES)
                sectors[write.path, sector].append(write._replace(start=start, end=end))
        return [part for parts in sectors.values() for part in parts[self.random.randint(0, len(parts)) :]]

    def check(self) -> None:
        """Raise the error of a full disk."""
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))

    def _open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            self._unconfirmed = [write for write in self._unconfirmed if write.path != str(path)]
        descriptor = os.open(path, flags, mode)
        self.running().descriptors.add(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        os.close(descriptor)
        self.running().descriptors.discard(descriptor)

    def _pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        if self.cuts_off:
            # A header or a witness fits in one page, so it is complete or missing.
            data = data[: self.random.randint(0, len(data)) if offset else self.random.choice((0, len(data)))]
            if not data:
                raise _Blocked
        if self.failure == errno.EIO:  # the kernel sometimes accepts writes that the disk then cannot confirm
            if self.random.random() < 0.5:
                self.check()
        elif self.failure:
            data = data[: max(0, os.fstat(descriptor).st_size - offset)]
            if not data:
                self.check()
        self.writes += 1
        size = os.pwrite(descriptor, data, offset)
        path = _path_of(descriptor)
        if path.endswith(".journal"):  # the witness is as late as possible if none of it is lost
            self._unconfirmed.append(Write(self.writes, path, offset, offset + size))
        return size

    def _confirm(self, descriptor: int) -> None:
        if self.cuts_off:
            raise _Blocked
        if self.failure == errno.EIO:
            self.check()
        path = _path_of(descriptor)
        self._unconfirmed = [write for write in self._unconfirmed if write.path != path]

    def _reserve(self, descriptor: int, start: int, size: int) -> None:
        self.check()
        os.posix_fallocate(descriptor, start, size)
        path = _path_of(descriptor)
        if not path.endswith(".journal"):  # an object's file, whose writes are not intercepted here
            self._unconfirmed.append(Write(0, path, start, start + size))


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())
