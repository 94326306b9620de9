"""Measures the cost of monitoring: no-ops by `submit`, with all views open and with none.

The views are `scaler_top` in a terminal, the web page in Chromium (or a reader of its events), and a scraper of
`/metrics`, each at its default interval. They have the last core to themselves, as if they ran on another machine. The
no-ops keep the other cores busy. While other programs run, the CPU time per task varies less than the rate.

Blocks of bursts with and without views alternate on one cluster. Each block with views is compared with the blocks
before and after. Figures are medians of these ratios.

python benchmarks/watched.py [--short] [--rounds 3]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from benchmarks.processes import cpu_seconds, cpu_seconds_since, processes
from benchmarks.rows import Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, identity
from scaler import Client, SchedulerClusterCombo

ROW = Row(
    title="{tasks:,} no-ops by `submit` with top, page, and metrics open: rate, relative to no views / CPU per task "
    "without views, relative to that with views / CPU of the views, % of a core",
    figures=(
        Figure("share of the rate", 0.97, is_noisy=True),
        Figure("share of the CPU per task", 0.97, is_noisy=True),
        Figure("CPU % of the views", 10, is_higher_better=False, is_noisy=True),
    ),
    full={"tasks": 30_000, "bursts": 5, "turns": 7, "settle_seconds": 4},
    short={"tasks": 2_000, "bursts": 1, "turns": 1, "settle_seconds": 1},
    systems=("scaler",),
    limit_seconds=300.0,
)

CHROMIUM = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"
SCRAPE = """
import sys, time
from urllib.request import urlopen
while True:
    assert b"scaler_scheduler_up 1" in urlopen(sys.argv[1] + "/metrics").read()
    time.sleep(1)
"""
READ_EVENTS = """
import sys
from urllib.request import urlopen
for line in urlopen(sys.argv[1] + "/events"):
    pass
"""


@dataclass(frozen=True)
class Block:
    """Results of some bursts: CPU seconds of cluster and client per task, and the share of a core for the views."""

    rate: float
    cpu_per_task: float
    views_cpu: float


@contextlib.contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """Restrict this thread, and processes that it starts, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def own(command: str) -> str:
    """Return the path of a command in this interpreter's environment."""
    return str(Path(sys.executable).with_name(command))


@contextlib.contextmanager
def started(*command: str, part: str = "", cores: list[int] | None = None) -> Iterator[tuple[psutil.Process, str]]:
    """Run a command, and yield the first word of its output with this part. Kills the process and its children."""
    output = subprocess.PIPE if part else subprocess.DEVNULL
    terminal = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with nullcontext() if cores is None else on_cores(cores):
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True, env=terminal
        )
    try:
        lines = iter(running.stdout or ())
        yield psutil.Process(running.pid), next((word for line in lines for word in line.split() if part in word), "")
    finally:
        process = psutil.Process(running.pid)
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        running.communicate()


@contextlib.contextmanager
def views(address: str, cores: list[int], settle_seconds: int) -> Iterator[list[psutil.Process]]:
    """Open all views, and wait until each has drawn current data."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ui = (own("scaler_ui"), address, "--web-port", "0")
        server, url = stack.enter_context(started(*ui, part="http://", cores=cores))
        page = (str(chromium), *CHROMIUM, f"--user-data-dir={profile}", "--remote-debugging-port=0", url)
        rest = [
            stack.enter_context(started(*command, cores=cores))[0]
            for command in (
                (sys.executable, "-c", TERMINAL, own("scaler_top"), address),
                (sys.executable, "-c", SCRAPE, url),
                page if chromium else (sys.executable, "-c", READ_EVENTS, url),
            )
        ]
        time.sleep(settle_seconds)
        yield [server, *rest]


def burst(client: Client, tasks: int) -> float:
    """Run a burst of tasks, and return tasks per second."""
    began = time.perf_counter()
    futures = [client.submit(identity, number) for number in range(tasks)]
    results = [future.result() for future in futures]
    seconds = time.perf_counter() - began
    check(results == list(range(tasks)), "submit")
    return tasks / seconds


def block(client: Client, watch: AbstractContextManager[list[psutil.Process]], tasks: int, bursts: int) -> Block:
    """Measure a block of bursts. Its rate is that of the median burst."""
    with watch as watching:
        views = [each for view in watching for each in (view, *view.children(recursive=True))]
        system = [each for each in processes() if each not in views]
        began, used, seen = time.perf_counter(), cpu_seconds(system), cpu_seconds(views)
        rates = [burst(client, tasks) for _ in range(bursts)]
        cpu, views_cpu = cpu_seconds_since(used), cpu_seconds_since(seen)
        seconds = time.perf_counter() - began
        check(all(view.status() != psutil.STATUS_ZOMBIE for view in watching), "the views: a view has exited")
    return Block(median(rates), cpu / (tasks * bursts), views_cpu / seconds)


def scenario(_start: Start, tasks: int, bursts: int, turns: int, settle_seconds: int) -> dict[str, float]:
    """Measure the row. Starts the cluster here, because the views need its address."""
    *cores, last = sorted(os.sched_getaffinity(0))
    with (
        on_cores(cores or [last]),
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(cluster.get_address()) as client,
    ):
        burst(client, tasks)
        alone, watched = [block(client, nullcontext([]), tasks, bursts)], []
        for _ in range(turns):
            watched.append(block(client, views(cluster.get_monitor_address(), [last], settle_seconds), tasks, bursts))
            alone.append(block(client, nullcontext([]), tasks, bursts))
    compared = list(zip(alone, watched, alone[1:], strict=False))
    return {
        "share of the rate": median(2 * each.rate / (before.rate + after.rate) for before, each, after in compared),
        "share of the CPU per task": median(
            (before.cpu_per_task + after.cpu_per_task) / 2 / each.cpu_per_task for before, each, after in compared
        ),
        "CPU % of the views": 100 * median(each.views_cpu for each in watched),
    }


if __name__ == "__main__":
    run_script("watched")
