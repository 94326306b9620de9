"""Task functions used by several rows, and the warm-up before a measurement."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.systems import System

READY_TASK_SECONDS = 0.02


def identity(value: int) -> int:
    return value


def pause(seconds: float, value: int) -> int:
    time.sleep(seconds)
    return value


def pause_and_pid(seconds: float, _number: int) -> int:
    time.sleep(seconds)
    return os.getpid()


def interval(seconds: float, _number: int) -> tuple[float, float]:
    """Return when the task began and ended."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def fibonacci(client: Any, number: int) -> int:
    """Compute a Fibonacci number, on systems that accept a client as a task's argument."""
    if number < 2:
        return number
    first, second = (client.submit(fibonacci, client, number - less) for less in (1, 2))
    return int(first.result() + second.result())


def recursion(client: Any, depth: int) -> int:
    """Return the depth through a chain of tasks, on systems that accept a client as a task's argument."""
    return 1 + int(client.submit(recursion, client, depth - 1).result()) if depth else 0


def wait_for_workers(system: System, workers: int) -> set[int]:
    """Keep tasks running until every worker has answered, and return the ids of their processes."""
    found: set[int] = set()
    pending = [system.submit(pause_and_pid, READY_TASK_SECONDS, number) for number in range(2 * workers)]
    number = len(pending)
    while len(found) < workers:
        time.sleep(0.005)
        done = [future for future in pending if future.done()]
        found |= {future.result() for future in done}
        pending = [future for future in pending if not future.done()]
        while len(pending) < 2 * workers:
            pending.append(system.submit(pause_and_pid, READY_TASK_SECONDS, number))
            number += 1
    return found | set(system.gather(pending))


def warm_up(system: System, workers: int) -> set[int]:
    """Wait until every worker is connected and has the function that most rows use."""
    found = wait_for_workers(system, workers)
    system.gather([system.submit(identity, number) for number in range(100)])
    return found


def check(is_right: bool, what: str) -> None:
    if not is_right:
        raise SystemExit(f"wrong results of {what}")
