"""Programs that `hosts.py` runs on several hosts, in the interpreter of each measured system.

    python -m benchmarks.host_programs PROGRAM ADAPTOR ADDRESS CREDENTIALS ARGUMENTS CHANNEL

CHANNEL is the descriptor of a socket to `hosts.py`. Only the work in a `Meter` is measured. At its begin and end, the
program notifies `hosts.py`, which reads the counters of the links and answers.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.systems import Spread
from benchmarks.tasks import check, warm_up

SLICE = 1_000
MODULUS = 2**64
"""Modulus for the sums of arrays."""

Arguments = Mapping[str, int]


class Meter:
    """Measures the time and the bytes on the links during a `with` statement."""

    def __init__(self, channel: socket.socket) -> None:
        self._lines = channel.makefile("rw")
        self._began = 0.0

    def __enter__(self) -> None:
        self._tell({"begins": True})
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._tell({"begins": False, "seconds": time.perf_counter() - self._began})

    def _tell(self, message: dict[str, Any]) -> None:
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()
        self._lines.readline()


def host_names(hosts: int) -> list[str]:
    return [f"host{number}" for number in range(1, hosts + 1)]


def random_array(size_bytes: float, seed: int) -> Any:
    """Return an array that does not compress."""
    return np.random.default_rng(seed).integers(0, MODULUS, int(size_bytes) // 8, np.uint64)


# -- tasks


def part(array: Any, number: int) -> int:
    return int(array[number * SLICE : (number + 1) * SLICE].sum())


def make(size_bytes: float, seed: int) -> Any:
    return random_array(size_bytes, seed)


def total(array: Any) -> int:
    return int(array.sum())


def step(array: Any) -> Any:
    return array + np.uint64(1)


def combine(pieces: list[Any]) -> int:
    return sum(int(piece[0]) for piece in pieces)


# -- programs


def shared(system: Spread, meter: Meter, given: Arguments) -> None:
    megabytes, tasks = given["megabytes"], given["tasks"]
    array = random_array(megabytes * 1e6, 1)
    with meter:
        sent = system.put(array)
        results = system.gather([system.submit(part, sent, number) for number in range(tasks)])
    check(results == [part(array, number) for number in range(tasks)], "tasks on one array")


def stay(system: Spread, meter: Meter, given: Arguments) -> None:
    megabytes, arrays = given["megabytes"], given["arrays"]
    with meter:
        made = [system.submit(make, megabytes * 1e6, seed) for seed in range(arrays)]
        results = system.gather([system.submit(total, each) for each in made])
    check(results == [total(make(megabytes * 1e6, seed)) for seed in range(arrays)], "sums of arrays")


def broadcast(system: Spread, meter: Meter, given: Arguments) -> None:
    array = random_array(given["megabytes"] * 1e6, 1)
    names = host_names(given["hosts"])
    with meter:
        sent = system.put(array)
        results = system.gather([system.submit_on(name, part, sent, number) for number, name in enumerate(names)])
    check(results == [part(array, number) for number in range(len(names))], "tasks on all hosts")


def chain(system: Spread, meter: Meter, given: Arguments) -> None:
    megabytes, tasks = given["megabytes"], given["tasks"]
    with meter:
        last = system.submit(make, megabytes * 1e6, 1)
        for _ in range(tasks - 2):
            last = system.submit(step, last)
        results = system.gather([system.submit(total, last)])
    expected = total(make(megabytes * 1e6, 1)) + (tasks - 2) * (megabytes * 1_000_000 // 8)
    check(results == [expected % MODULUS], "a chain of tasks")


def shuffle(system: Spread, meter: Meter, given: Arguments) -> None:
    kilobytes, pieces = given["kilobytes"], given["pieces"]
    size = kilobytes * 1e3
    with meter:
        rows = [[system.submit(make, size, row * pieces + column) for column in range(pieces)] for row in range(pieces)]
        results = system.gather([system.submit(combine, [row[column] for row in rows]) for column in range(pieces)])
    expected = [combine([make(8, row * pieces + column) for row in range(pieces)]) for column in range(pieces)]
    check(results == expected, "a shuffle")


PROGRAMS: dict[str, Callable[[Spread, Meter, Arguments], None]] = {
    "shared": shared,
    "stay": stay,
    "broadcast": broadcast,
    "chain": chain,
    "shuffle": shuffle,
}


def main(program: str, adaptor: str, address: str, credentials: str, arguments: str, channel: str) -> None:
    given: Arguments = json.loads(arguments)
    module = importlib.import_module(f"benchmarks.systems.{adaptor}")
    with socket.socket(fileno=int(channel)) as link:
        system: Spread = module.Connected(address, credentials)
        warm_up(system, given["hosts"] * given["slots"])
        # By now, each host has received everything that its first large value needs.
        first = system.put(random_array(2e6, 0))
        system.gather([system.submit_on(name, part, first, 0) for name in host_names(given["hosts"])])
        del first
        PROGRAMS[program](system, Meter(link), given)
        system.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
