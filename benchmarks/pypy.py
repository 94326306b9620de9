"""Compares the scheduler on PyPy with the scheduler on CPython, as a bare core and in a cluster.

    .ci/pythons pypy3.11                # once: build/pythons/pypy3.11
    python benchmarks/pypy.py [--rounds 3] [--pypy build/pythons/pypy3.11/bin/python]

Workers and client always run on CPython. Each round runs both interpreters. Figures are medians: the CPU time of the
scheduler process per task, and the client's rate.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from benchmarks.tasks import identity
from scaler import Client
from tests.integration.settings_rig import command

CALLS, ALONE, LAYERS, WIDTH = 20_000, 3_000, 200, 100
WARM_UP_ROUNDS = 5
"""Rounds until PyPy has compiled the hot code."""


def add(left: int, right: int) -> int:
    return left + right


def submits(client: Client) -> int:
    for future in [client.submit(identity, number) for number in range(CALLS)]:
        future.result()
    return CALLS


def alone(client: Client) -> int:
    for number in range(ALONE):
        client.submit(identity, number).result()
    return ALONE


def graph(client: Client) -> int:
    nodes: dict[str, object] = {f"-1 {number}": 0 for number in range(WIDTH)}
    for layer in range(LAYERS):
        for number in range(WIDTH):
            nodes[f"{layer} {number}"] = (add, f"{layer - 1} {number}", f"{layer - 1} {(number + 1) % WIDTH}")
    client.get(nodes, [f"{LAYERS - 1} {number}" for number in range(WIDTH)])
    return LAYERS * WIDTH


WORK: Mapping[str, Callable[[Client], int]] = {"submit": submits, "one at a time": alone, "graph": graph}


def measure(python: str) -> dict[str, float]:
    """Return the figures of a cluster with its scheduler on this interpreter."""
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        command("scaler_scheduler", "tcp://127.0.0.1:0", directory=Path(folder), python=python) as scheduler,
        command("scaler_cluster", address := scheduler.addresses()["scheduler"], "-n", "2", directory=Path(folder)),
        Client(address) as client,
    ):
        process = psutil.Process(scheduler.pid)
        for _ in range(WARM_UP_ROUNDS):
            submits(client)
        for name, work in WORK.items():
            work(client)
            cpu, began = sum(process.cpu_times()[:2]), time.perf_counter()
            tasks = work(client)
            seconds = time.perf_counter() - began
            found[f"{name}: us of CPU per task"] = (sum(process.cpu_times()[:2]) - cpu) / tasks * 1e6
            found[f"{name}: tasks/s"] = tasks / seconds
        found["memory, MiB"] = process.memory_info().rss / 2**20
    return found


def core(python: str) -> dict[str, float]:
    """Return microseconds per task of the scheduler's core alone, by workers and batch."""
    script = Path(__file__).with_name("core.py")
    done = subprocess.run([python, script], capture_output=True, text=True, check=True)
    rows = [line.replace(",", "").split() for line in done.stdout.splitlines()]
    return {
        f"core, {workers} workers, {batch}: us per task": float(us)
        for workers, batch, us, _ in (row for row in rows if len(row) == 4)
        if workers.isdigit()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parents[1] / "build" / "pythons" / "pypy3.11" / "bin" / "python"
    parser.add_argument("--pypy", default=str(default))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    taken: dict[str, list[dict[str, float]]] = {"cpython": [], "pypy": []}
    for _ in range(given.rounds):
        for name, python in (("cpython", sys.executable), ("pypy", given.pypy)):
            figures = measure(python)
            with contextlib.suppress(subprocess.CalledProcessError):
                figures |= core(python)
            taken[name].append(figures)
    print("| figure | CPython | PyPy | ratio |\n| --- | --- | --- | --- |")
    for figure in taken["cpython"][0]:
        own, other = (median(each.get(figure, float("nan")) for each in taken[name]) for name in ("cpython", "pypy"))
        print(f"| {figure} | {own:,.1f} | {other:,.1f} | {other / own:.2f} |")


if __name__ == "__main__":
    main()
