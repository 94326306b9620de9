"""10,000 submits and a map of 50,000 items, beside the standard library's ProcessPoolExecutor in the same run.

Two workers each. The two take turns, so that what else the machine does hits both; the table shows medians.

    python benchmarks/first.py [--rounds 3] [--tasks 10000] [--items 50000]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, Protocol

from scaler import Client, SchedulerClusterCombo

WORKERS = 2
EXECUTOR_CHUNK = 500
"""Without chunks, the executor's map is as slow as its submit."""


def identity(value: int) -> int:
    return value


class Submits(Protocol):
    def submit(self, function: Callable[[int], int], argument: int, /) -> Future[Any]: ...


def submit_rate(target: Submits, tasks: int) -> float:
    begin = time.perf_counter()
    futures = [target.submit(identity, value) for value in range(tasks)]
    results = [future.result() for future in futures]
    seconds = time.perf_counter() - begin
    if results != list(range(tasks)):
        raise SystemExit("wrong results of submit")
    return tasks / seconds


def map_rate(run: Callable[[], Iterable[int]], items: int) -> float:
    begin = time.perf_counter()
    results = list(run())
    seconds = time.perf_counter() - begin
    if results != list(range(items)):
        raise SystemExit("wrong results of map")
    return items / seconds


def round_trip_ms(target: Submits, times: int = 300) -> float:
    taken = []
    for value in range(times):
        begin = time.perf_counter()
        target.submit(identity, value).result()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=50_000)
    arguments = parser.parse_args()
    tasks, items = arguments.tasks, arguments.items

    figures: dict[str, list[tuple[float, float]]] = {}
    begin = time.perf_counter()
    with (
        SchedulerClusterCombo(n_workers=WORKERS) as cluster,
        Client(address=cluster.get_address()) as client,
        ProcessPoolExecutor(WORKERS) as executor,
    ):
        client.submit(identity, 0).result()
        started = time.perf_counter() - begin
        list(executor.map(identity, range(100)))
        client.map(identity, range(100))
        for _ in range(arguments.rounds):
            rows: dict[str, tuple[float, float]] = {
                f"{tasks:,} submits, tasks/s": (submit_rate(client, tasks), submit_rate(executor, tasks)),
                f"map over {items:,}, items/s": (
                    map_rate(lambda: client.map(identity, range(items)), items),
                    map_rate(lambda: executor.map(identity, range(items), chunksize=EXECUTOR_CHUNK), items),
                ),
                "one at a time, ms": (round_trip_ms(client), round_trip_ms(executor)),
            }
            for name, pair in rows.items():
                figures.setdefault(name, []).append(pair)

    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {WORKERS} workers, {arguments.rounds} rounds")
    print(f"from start to the first result: {started:.2f} s\n")
    print("| | scaler | ProcessPoolExecutor | ratio |")
    print("|---|---|---|---|")
    for name, pairs in figures.items():
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        shown = "{:,.2f}" if ours < 100 else "{:,.0f}"
        print(f"| {name} | {shown.format(ours)} | {shown.format(theirs)} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
