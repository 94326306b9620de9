"""Workload for `dashboards.py`, the same on each system: functions of various durations, failures, output, memory, and
a slow worker.

    python benchmarks/dashboard_work.py scaler|dask SECONDS

Prints the address of the system's page, works for SECONDS, prints "worked", and keeps the system running until stdin
closes.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

WORKERS = 5
MIB = 1024**2
BURST = 60
"""Number of calls submitted together."""


def _slowness() -> float:
    """Return 3 on the one worker that has claimed to be slow, and 1 on other workers."""
    claim = Path(os.environ["SLOW_WORKER_CLAIM"])
    own = str(os.getppid() if os.environ["SYSTEM"] == "scaler" else os.getpid())
    with contextlib.suppress(FileExistsError), claim.open("x") as file:
        file.write(own)
    return 3.0 if claim.read_text() == own else 1.0


def simulate_paths(number: int) -> float:
    """Compute for a tenth of a second, or longer on the slow worker."""
    until = time.perf_counter() + 0.1 * _slowness()
    total = 0.0
    while time.perf_counter() < until:
        total += _path(number)
    return total


def _path(number: int) -> float:
    draw = random.Random(number)
    return sum(draw.gauss(0.0, 1.0) for _ in range(500))


def load_market(number: int) -> int:
    """Allocate 40 MB briefly."""
    held = bytearray(40 * MIB)
    time.sleep(0.05)
    return len(held) + number


def price_swaption(number: int) -> float:
    """Price a trade and print a line about it. Fails for every twentieth trade."""
    time.sleep(0.02)
    print(f"priced trade {number}")
    if number % 20 == 7:
        raise ValueError(f"no curve for trade {number}")
    return 1.0 * number


FUNCTIONS = (simulate_paths, load_market, price_swaption)


@contextlib.contextmanager
def scaler() -> Iterator[tuple[str, Any]]:
    from scaler import Client, SchedulerClusterCombo  # noqa: PLC0415 (each system is imported where it is installed)

    with ExitStack() as stack:
        cluster = stack.enter_context(SchedulerClusterCombo(n_workers=0, web_port=0))
        command = Path(sys.executable).with_name("scaler_worker_manager")
        flags = "baremetal_native", cluster.get_address(), "-mtc", str(WORKERS), "-wmi", "rack"
        manager = subprocess.Popen([command, *flags], stdout=subprocess.DEVNULL)
        stack.callback(manager.wait)
        stack.callback(manager.terminate)
        client = stack.enter_context(Client(cluster.get_address(), name="risk-desk"))
        yield cluster.get_page().rstrip("/"), client


@contextlib.contextmanager
def dask() -> Iterator[tuple[str, Any]]:
    from distributed import Client, LocalCluster  # type: ignore[import-not-found]  # noqa: PLC0415

    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        yield cluster.dashboard_link.removesuffix("/status"), client


def work(client: Any, seconds: float) -> None:
    """Submit bursts until the time is up, without waiting for the last one."""
    until, number = time.monotonic() + seconds, 0
    options = {} if os.environ["SYSTEM"] == "scaler" else {"pure": False}
    while time.monotonic() < until:
        futures = [
            client.submit(FUNCTIONS[each % len(FUNCTIONS)], number + each, **options) for each in range(3 * BURST)
        ]
        number += len(futures)
        for future in futures[: 2 * BURST]:
            with contextlib.suppress(ValueError):
                future.result()


def main() -> None:
    name, seconds = sys.argv[1:]
    os.environ["SYSTEM"] = name
    with {"scaler": scaler, "dask": dask}[name]() as (page, client):
        print(page, flush=True)
        work(client, float(seconds))
        print("worked", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
