"""Two clients that share two workers, then an urgent task behind long ones. Part of `sharing.py`."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.rows import Figure, Row
from benchmarks.systems import Shared, System
from benchmarks.tasks import interval, warm_up

LONG_SECONDS, SHORT_SECONDS, URGENT_AFTER_SECONDS, WINDOW_SECONDS = 2.0, 0.05, 0.5, 10.0
BACKLOG = 8
"""Unfinished tasks of each client at any time."""
POLL_SECONDS = 0.005
BEGINS, USED = "window begins at", "slot-seconds used:"

ROW = Row(
    title="urgent task 0.5 s after four tasks of 2 s: wait, s / two clients, 10 s: slot-seconds of 2 s / 0.05 s tasks",
    figures=(Figure("wait", 1.5, is_higher_better=False), Figure("long", 10), Figure("short", 10)),
    full={},
    short={},
    systems=("scaler", "dask", "ray"),
)


def scenario(start: Callable[[int], Shared]) -> dict[str, float]:
    system = start(2)
    warm_up(system, 2)
    code = f"from benchmarks.sharing_clients import second; second({start.__module__!r}, {system.address!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        lines = iter(other.stdout or ())
        long = slot_seconds(system, LONG_SECONDS, told(BEGINS, lines))
        short = told(USED, lines)
    # Afterwards, because use counts for shares.
    longer = [system.submit(interval, LONG_SECONDS, number) for number in range(4)]
    time.sleep(URGENT_AFTER_SECONDS)
    submitted = time.time()
    began, _ = system.submit_urgent(interval, SHORT_SECONDS, 4).result()
    system.gather(longer)
    system.close()
    return {"wait": began - submitted, "long": long, "short": short}


def second(adaptor: str, address: str) -> None:
    """Submit short tasks from another process, which chooses the start of the window."""
    system = importlib.import_module(adaptor).Connected(address, "")
    system.submit(interval, SHORT_SECONDS, 0).result()
    begins = time.time() + 0.5
    print(BEGINS, begins, flush=True)
    print(USED, slot_seconds(system, SHORT_SECONDS, begins), flush=True)
    system.close()


def told(name: str, lines: Iterator[str]) -> float:
    """Return the number after a name. Systems write to standard output too."""
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def slot_seconds(system: System, seconds: float, begins: float) -> float:
    """Keep tasks with this duration unfinished, and return the time that they use slots in the window."""
    time.sleep(max(0.0, begins - time.time()))
    ends, used, numbers = begins + WINDOW_SECONDS, 0.0, count()
    pending = [system.submit(interval, seconds, next(numbers)) for _ in range(BACKLOG)]
    while pending:
        done = [future for future in pending if future.done()]
        pending = [future for future in pending if future not in done]
        for began, ended in [future.result() for future in done]:
            used += max(0.0, min(ended, ends) - max(began, begins))
        if time.time() < ends:
            pending += [system.submit(interval, seconds, next(numbers)) for _ in done]
        time.sleep(POLL_SECONDS)
    return used
