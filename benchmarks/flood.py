"""Measures one client's round trip while another client floods the cluster with tasks.

    python benchmarks/flood.py [--tasks 200000] [--workers 2] [--rounds 3] [--cases alone,elsewhere,flood]

A client submits one no-op, waits for its result, and pauses for 20 ms before the next. Meanwhile another client does
nothing (`alone`), submits --tasks no-ops at once to another cluster of the same size on this machine (`elsewhere`), or
submits them to the same cluster (`flood`). `elsewhere` is the control: it uses the same CPU time but shares nothing
else. The difference between `flood` and `elsewhere` is time spent behind the other client's tasks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tasks import check, identity
from scaler import Client, SchedulerClusterCombo

CASES = ("alone", "elsewhere", "flood")
ALONE_SECONDS = 3.0
PAUSE_SECONDS = 0.02


def say(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def flood(address: str, tasks: int) -> None:
    """Submit all tasks after a line of input. Prints the time of the last result."""
    with Client(address) as client:
        client.submit(identity, 1).result()
        say()
        sys.stdin.readline()
        began = time.perf_counter()
        futures = [client.submit(identity, number) for number in range(tasks)]
        submitted = time.perf_counter() - began
        check(sum(future.result() for future in futures) == sum(range(tasks)), "the flood")
        say(submitted=submitted, ended=time.perf_counter() - began)


def single(address: str) -> None:
    """Run one task at a time between two lines of input. Prints the durations in ms."""
    taken: list[float] = []
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        is_over.set()

    with Client(address) as client:
        for number in range(20):
            client.submit(identity, number).result()
        say()
        sys.stdin.readline()
        threading.Thread(target=wait, daemon=True).start()
        while not is_over.is_set():
            began = time.perf_counter()
            client.submit(identity, 1).result()
            taken.append((time.perf_counter() - began) * 1000)
            time.sleep(PAUSE_SECONDS)
    taken.sort()
    count = len(taken)
    say(count=count, p50=taken[count // 2], p99=taken[count * 99 // 100], max=taken[-1])


class Program:
    """A process that runs one of the two clients above."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def resume(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        check(bool(line), "a client")
        return {name: float(value) for name, value in json.loads(line).items()}

    def end(self) -> None:
        self._process.communicate()


def run(case: str, tasks: int, workers: int) -> dict[str, float]:
    with SchedulerClusterCombo(n_workers=workers, logging_level="WARNING") as cluster:
        if case == "elsewhere":
            with SchedulerClusterCombo(n_workers=workers, logging_level="WARNING") as other:
                return measure(cluster.get_address(), other.get_address(), tasks)
        return measure(cluster.get_address(), cluster.get_address() if case == "flood" else "", tasks)


def measure(address: str, flooded: str, tasks: int) -> dict[str, float]:
    one = Program("--single", address)
    other = Program("--flood", flooded, "--tasks", str(tasks)) if flooded else None
    one.resume()
    figures = {}
    if other is None:
        time.sleep(ALONE_SECONDS)
    else:
        other.resume()
        figures = other.read()
        other.end()
    one.resume()
    figures |= one.read()
    one.end()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--single", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--flood", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.single:
        single(given.single)
    elif given.flood:
        flood(given.flood, given.tasks)
    else:
        print(f"{given.workers} workers, {given.tasks} tasks; all times in ms, flood in s")
        for number in range(given.rounds):
            for case in given.cases.split(","):
                figures = run(case, given.tasks, given.workers)
                shown = " ".join(f"{name}={value:.1f}" for name, value in figures.items())
                print(f"{number + 1} {case:10} {shown}", flush=True)


if __name__ == "__main__":
    main()
