"""A soak: `python -m tests.chaos.soak --seconds 3600`, which is `make endure`.

First, the histories of all processes are filled (see `filling`). Then clients, workers, and objects are created and
removed for an hour without faults, while the memory, descriptors, and threads of every lasting process are sampled. A
figure with a slope significantly above its limit is a leak, and makes the exit code 1.

Two clients last for the whole soak. In one, the C library keeps freed memory for each thread, so its memory varies with
the values. In the other, each freed value is returned at once, so its memory is the client's own usage.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import sleep
from urllib.request import ProxyHandler, build_opener

import psutil

from tests.chaos.cluster import Cluster, send
from tests.chaos.history import now
from tests.chaos.slopes import slope

SAMPLE_SECONDS = 2.0
CLIENT_SECONDS = 20.0
"""Lifetime of a client. Two additional clients last for the whole soak."""
FILLING_SECONDS = 900.0
"""Time limit for filling the histories, which takes about 30 s on an idle machine."""
AGENT_SECONDS = 30.0
"""Interval at which a worker is asked to exit. Its manager then starts another one."""
DRAIN_SECONDS = 90.0
"""Maximum time for a client to get its pending results after the end."""
PAGE_SECONDS = 10.0
"""Interval at which the page's documents are read."""
PAGE_DOCUMENTS = ("metrics", "api/status", "api/tasks", "api/failures", "api/timeline", "api/series")
RETURNING = {"MALLOC_MMAP_THRESHOLD_": str(1024 * 1024)}
"""The C library returns larger blocks when freed. Without this setting, the threshold grows with the blocks."""
LASTING = 9
"""Number of lasting processes."""
MIB = 1024 * 1024
LIMITS = {"pss": 16.0 * MIB, "rss": 24.0 * MIB, "descriptors": 6.0, "threads": 2.0}
"""Maximum growth of a figure per hour."""

Samples = dict[tuple[str, str], list[tuple[float, float]]]
"""Samples by process and figure."""


def lasting(cluster: Cluster) -> dict[str, psutil.Process]:
    """Return the processes that last for the whole soak, by name."""
    found = {name: cluster.find(name) for name in ("object storage", "scheduler", "page")}
    for name, manager in zip(("manager near", "manager far"), cluster.find("manager"), strict=False):
        found[name] = [manager]
    for name, client in zip(("client", "client returning"), cluster.find("client"), strict=False):
        found[name] = [client]
    found["agent near"], found["fork server near"] = cluster.find("agent")[:1], cluster.find("fork server")[:1]
    return {name: processes[0] for name, processes in found.items() if processes}


def measure(process: psutil.Process) -> dict[str, float]:
    memory = process.memory_full_info()
    return {
        "pss": float(memory.pss),
        "rss": float(memory.rss),
        "descriptors": float(process.num_fds()),
        "threads": float(process.num_threads()),
    }


def read_page(page: str, until: float) -> None:
    """Follow the page like a browser, and read its documents periodically, until the end."""
    opener = build_opener(ProxyHandler({}))
    next_at = now()
    with opener.open(f"{page}/events", timeout=60) as events:
        for _ in events:
            if now() >= until:
                return
            if now() >= next_at:
                next_at += PAGE_SECONDS
                for name in PAGE_DOCUMENTS:
                    with opener.open(f"{page}/{name}", timeout=60) as document:
                        document.read()
    raise RuntimeError("the page has ended its stream of events")


def soak(cluster: Cluster, seconds: float) -> Samples:
    """Start and stop clients, workers, and objects, and take samples."""
    samples: Samples = defaultdict(list)
    filled_from = now()
    filling = cluster.start_client(cluster.order("filling", is_far=False, until=filled_from), "tests.chaos.filling")
    if filling.wait(FILLING_SECONDS):
        raise RuntimeError(f"filling the histories ended with exit code {filling.returncode}")
    began = now()
    print(f"the histories are full after {began - filled_from:.0f} s", flush=True)
    until = began + seconds
    reader = ThreadPoolExecutor(1, "browser")
    reading = reader.submit(read_page, cluster.page, until)
    for name, variables in (("lasting", {}), ("returning", RETURNING)):
        order = cluster.order(name, is_far=False, until=until, keeps_objects=False)
        cluster.start_client(replace(order, begins_large=True), variables=variables)
    number, next_client, next_agent = 0, began, began + AGENT_SECONDS
    sleep(SAMPLE_SECONDS)
    processes: dict[str, psutil.Process] = {}
    while now() < until:
        if now() >= next_client:
            number += 1
            next_client += CLIENT_SECONDS
            ends = now() + CLIENT_SECONDS
            cluster.start_client(cluster.order(f"passing{number}", is_far=bool(number % 2), until=ends))
        if now() >= next_agent:
            next_agent += AGENT_SECONDS
            for agent in cluster.find("agent")[1:2]:
                send(agent, signal.SIGTERM)
        if len(processes) < LASTING:
            processes = lasting(cluster)
        for name, process in processes.items():
            with suppress(psutil.Error):
                for figure, value in measure(process).items():
                    samples[name, figure].append((now() - began, value))
        sleep(SAMPLE_SECONDS)
    reading.result(60)
    for client in cluster.clients:
        client.process.wait(DRAIN_SECONDS)
    return samples


def report(samples: Samples) -> list[str]:
    """Print a line for each process and figure, and return the figures that grow beyond their limit."""
    problems = []
    print(f"{'process':18} {'figure':12} {'mean':>10} {'slope an hour':>24}   limit")
    for (name, figure), points in samples.items():
        found = slope(points)
        if found is None:
            problems.append(f"{name} has {len(points)} samples of its {figure}: too few")
            continue
        unit, word = (MIB, " MiB") if figure in ("pss", "rss") else (1, "")
        line = (
            f"{name:18} {figure:12} {found.mean / unit:10,.1f} {found.per_hour / unit:+10,.2f} ±"
            f" {found.error / unit:6,.2f}{word}   {LIMITS[figure] / unit:g}{word}"
        )
        print(line, flush=True)
        if found.is_above(LIMITS[figure]):
            problems.append(line)
    return problems


def main() -> int:
    """Run and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="duration (default: 3600)")
    parser.add_argument("--seed", type=int, default=1, help="determines the work (default: 1)")
    parser.add_argument("--samples", default="", help="file to which all samples are written, as CSV")
    request = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    cluster = Cluster(directory, request.seed)
    try:
        samples = soak(cluster, request.seconds)
    finally:
        left = cluster.stop()
    if request.samples:
        rows = (f"{name},{figure},{at},{value}\n" for (name, figure), points in samples.items() for at, value in points)
        Path(request.samples).write_text("process,figure,seconds,value\n" + "".join(rows))
    problems = report(samples) + [f"left behind: {each}" for each in left]
    for problem in problems:
        print(f"GROWS OR IS LEFT BEHIND: {problem}")
    shutil.rmtree(directory)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
