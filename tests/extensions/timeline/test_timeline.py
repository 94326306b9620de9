"""The timeline of real work: tasks of one slot never overlap, in every view."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.monitor.cluster_rows import LIVE
from tests.integration.settings_rig import command
from tests.integration.test_web_ui import WAIT_SECONDS, scheduler, web_ui

MICROSECOND = 1.5e-6
"""Error of rounding a current time to microseconds, twice."""


def short(seconds: float) -> None:
    time.sleep(seconds)  # the timeline shows durations


def flaky(folder: str, number: int) -> None:
    marker = Path(folder) / str(number)
    if not marker.exists():
        marker.touch()
        os._exit(3)


def nested(seconds: list[float]) -> None:
    with Client() as client:
        for future in [client.submit(short, each) for each in seconds]:
            future.result()


def test_tasks_in_one_lane_never_overlap_and_all_outputs_agree(ports: ReservedPorts, tmp_path: Path) -> None:
    draw = random.Random(1)
    submitted: dict[str, float] = {}
    with (
        scheduler(ports, tmp_path),
        command("cluster", ports.address(), "-n", "3", directory=tmp_path),
        command("cluster", ports.address(), "-n", "2", directory=tmp_path),
        web_ui(ports, tmp_path) as page,
        Client(ports.address()) as client,
    ):
        futures = []
        for number in range(300):
            kind = draw.random()
            at = time.time()
            if kind < 0.02:
                future = client.submit(flaky, str(tmp_path), number)
            elif kind < 0.06:
                future = client.submit(nested, [draw.expovariate(200) for _ in range(4)])
            else:
                future = client.submit(short, draw.expovariate(200))
            submitted[future.task_id.hex()] = at
            futures.append(future)
        for future in futures:
            future.result(WAIT_SECONDS)
        ended = time.time()
        found = page.until(
            "/api/timeline",
            lambda found: (
                submitted.keys() <= {bar[2] for lane in found["lanes"] for bar in lane["bars"]}
                # A flaky task that is retried keeps the bar of its first attempt.
                and all(found["states"][bar[4]] not in LIVE for lane in found["lanes"] for bar in lane["bars"])
            ),
        )
        workers = {row["name"]: row for row in page.json("/api/workers")["workers"]}
        rows = {row["id"]: row for row in page.json("/api/tasks?limit=1000")["tasks"]}
        trace = subprocess.run(
            [sys.executable, "-m", "scaler.cli", "scaler", "trace", "-", ports.address(2)],
            check=True,
            capture_output=True,
            timeout=WAIT_SECONDS,
        )
    assert sum(len(lane["bars"]) > 0 for lane in found["lanes"]) >= 5
    for lane in found["lanes"]:
        worker = workers[lane["worker"]]
        assert 0 < worker["clock_error_seconds"] < 1.0
        for before, after in pairwise(lane["bars"]):
            assert before[1] <= after[0], f"{before} overlaps {after}"
        for start, end, task, *_ in lane["bars"]:
            # All clocks are the same here, so any difference is an error of the estimate.
            assert submitted.get(task, 0.0) - worker["clock_error_seconds"] - 0.001 <= start <= end
            assert end <= ended + worker["clock_error_seconds"] + 0.001
            assert (rows[task]["lane"], rows[task]["worker"]) == (lane["lane"], lane["worker"])
            assert rows[task]["started_at"] == pytest.approx(start, abs=MICROSECOND)
            # A bar ends before the next one, even if a better estimate moves that.
            assert rows[task]["ended_at"] == pytest.approx(end, abs=MICROSECOND + worker["clock_error_seconds"])
    threads = defaultdict(list)
    events = {event["args"]["task"]: event for event in json.loads(trace.stdout)["traceEvents"] if event["ph"] == "X"}
    bars = {bar[2]: bar for lane in found["lanes"] for bar in lane["bars"]}
    assert events.keys() == bars.keys()
    shifts = []
    for task, event in events.items():
        threads[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        shifts.append(event["ts"] / 1e6 - bars[task][0])
        assert event["dur"] / 1e6 == pytest.approx(bars[task][1] - bars[task][0], abs=0.01)
    for lane in threads.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(lane)))
    assert max(map(abs, shifts)) < 0.01, "another monitor may have a later estimate of the clocks, not another order"
