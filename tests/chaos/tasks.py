"""Tasks of a chaos run: each records its start and end in the history, and returns a unique value."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from scaler import Client, current_gang
from tests.chaos.history import Ended, History, Started, now

TASKS = "tasks"
"""Name of the file that all tasks append to."""
SHOWN_BYTES = 200
"""Longer values are represented by their digest."""
_histories: dict[str, History] = {}


@contextmanager
def recorded(directory: str, task: str) -> Iterator[None]:
    """Record the start and the end of a task in the history."""
    history = _histories.get(directory)
    if history is None:
        history = _histories[directory] = History(directory, TASKS)
    began = now()
    by = f"{os.getpid()}@{began:.6f}"
    history.add(Started(began, task, by))
    yield
    history.add(Ended(now(), task, by))


def value_of(task: str) -> str:
    """Return the text that a task must return."""
    return f"value of {task}"


def bytes_of(task: str, size: int) -> bytes:
    """Return the bytes that a task must return, which differ from those of all other tasks at every offset."""
    return hashlib.shake_128(task.encode()).digest(size)


def shown(value: object) -> str:
    """Return the text that represents a value in the history."""
    if isinstance(value, bytes) and len(value) > SHOWN_BYTES:
        return f"{len(value)} bytes {hashlib.blake2b(value, digest_size=16).hexdigest()}"
    return str(value)


def tiny(directory: str, task: str) -> str:
    with recorded(directory, task):
        return value_of(task)


def long(directory: str, task: str, seconds: float) -> str:
    with recorded(directory, task):
        until = now() + seconds
        while (left := until - now()) > 0:
            time.sleep(min(left, 0.2))  # in short steps, because time in suspension counts
        return value_of(task)


def failing(directory: str, task: str) -> str:
    with recorded(directory, task):
        raise ValueError(value_of(task))


def large(directory: str, task: str, data: bytes, of: str, size: int) -> bytes:
    """Check the bytes of the task `of`, and return the same number of different bytes."""
    with recorded(directory, task):
        if data != bytes_of(of, size):
            return f"the argument is {shown(data)}".encode()
        return bytes_of(task, size)


def made(directory: str, task: str, size: int) -> bytes:
    """Return bytes that tasks on other hosts use."""
    with recorded(directory, task):
        return bytes_of(task, size)


def used(directory: str, task: str, sizes: dict[str, int], *data: bytes) -> str:
    """Check the bytes of other tasks. sizes: number of bytes by task name."""
    with recorded(directory, task):
        is_right = all(map(is_value_of, sizes, data, sizes.values()))
        return value_of(task) if is_right else f"the arguments of {task} are wrong"


def is_value_of(task: str, data: bytes, size: int) -> bool:
    """Return whether these are the bytes that a task of this name must return."""
    return data == bytes_of(task, size)


def joined(directory: str, task: str, *parts: str) -> str:
    """Return a graph node's value, which shows whether each of its inputs was correct."""
    task = task.removeprefix("task ")
    with recorded(directory, task):
        return value_of(task) + "".join(f"({part})" for part in parts)


def ganged(directory: str, task: str) -> str:
    """Return a value that names this gang member's rank."""
    with recorded(directory, task):
        gang = current_gang()
        return f"{gang.rank} of {gang.size}"


def streamed(directory: str, task: str, count: int) -> Iterator[str]:
    with recorded(directory, task):
        for number in range(count):
            yield f"{value_of(task)} {number}"


def nested(directory: str, task: str, children: int, depth: int) -> str:
    """Submit child tasks, and return a value that depends on all of them."""
    with recorded(directory, task):
        attempt = f"{task}/{os.getpid()}@{now():.6f}"
        names = [f"{attempt}/{number}" for number in range(children)]
        with Client() as client:
            if depth > 1:
                futures = [client.submit(nested, directory, name, children, depth - 1) for name in names]
            else:
                futures = [client.submit(tiny, directory, name) for name in names]
            values = [future.result() for future in futures]
        right = values == [value_of(name) for name in names]
        return value_of(task) if right else f"the children of {task} returned {values}"
