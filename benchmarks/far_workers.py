"""Measures the share of time for which tasks keep the slots of remote workers busy.

    python benchmarks/far_workers.py [--milliseconds 100] [--slots 4] [--tasks 1 10 50] [--seconds 6]

The scheduler and its client are on one simulated host, the workers on another (`tests/hosts.py`, as root), joined by
the link from `far.py`. Tasks sleep, so one CPU suffices for all slots. The share is the work done in the second half of
a run, divided by slots and time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.far import FAR, NEAR, PORT, carry, end_of_link
from scaler import Client
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.hosts import hosts, run_as_root, why_not

MEGABITS = 200.0
WARM_SECONDS = 6.0
"""Time until the scheduler has measured the workers' round trip, from their second heartbeat."""


def rest(seconds: float) -> tuple[float, float]:
    """Sleep. Returns the start and end on the monotonic clock, which both hosts share."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def busy_share(client: Client, task_seconds: float, slots: int, seconds: float) -> float:
    """Run tasks for a while, and return the busy share of the slots in the second half."""
    count = int(1.2 * seconds * slots / task_seconds)
    begun = time.monotonic()
    ran = client.map(rest, [task_seconds] * count, chunk_size=1)
    begin, end = begun + seconds / 2, min(begun + seconds, max(ended for _, ended in ran) - task_seconds)
    busy = sum(max(0.0, min(until, end) - max(since, begin)) for since, until in ran)
    return float(busy / (end - begin) / slots)


def serve(home: Path, slots: int, seconds: float, milliseconds: list[float]) -> None:
    """Run the scheduler's host. Prints a line when workers can connect, then the shares as JSON."""
    address = f"tcp://{NEAR}:{PORT}"
    command = [sys.executable, "-m", "scaler.cli", "scaler_scheduler", address, "--credentials", str(home / "keys")]
    with subprocess.Popen(command, stdout=sys.stderr) as scheduler:
        with Client(address, credentials=str(home / "client.credentials")) as client:
            print("ready", flush=True)
            for future in [client.submit(rest, 0.01) for _ in range(slots)]:
                future.result()
            time.sleep(WARM_SECONDS)
            shares = {length: busy_share(client, length / 1000, slots, seconds) for length in milliseconds}
        scheduler.terminate()
    print(json.dumps(shares), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=100, help="round trip")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--tasks", type=float, nargs="+", default=[1, 10, 50], help="task durations in milliseconds")
    parser.add_argument("--seconds", type=float, default=6, help="duration of each run")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.slots, given.seconds, given.tasks)
        return
    run_as_root()
    if reason := why_not():
        sys.exit(reason)
    with ExitStack() as after:
        home = Path(after.enter_context(tempfile.TemporaryDirectory()))
        keys = KeysDirectory.create(home / "keys", "benchmark")
        for name, role in (("client", "client"), ("workers", "manager")):
            write_private(home / f"{name}.credentials", keys.add(name, role).to_text())
        near, far = after.enter_context(hosts(2)).hosts
        ends = end_of_link(near, NEAR, FAR), end_of_link(far, FAR, NEAR)
        link = os.fork()
        if not link:
            carry(*ends, MEGABITS, given.milliseconds)
        after.callback(os.waitpid, link, 0)
        after.callback(os.kill, link, 9)
        options = ["--slots", given.slots, "--seconds", given.seconds, "--tasks", *given.tasks, "--serve", home]
        server = near.start(sys.executable, __file__, *map(str, options), stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "the scheduler did not start"
        worker = ["-m", "scaler.cli", "scaler_cluster", f"tcp://{NEAR}:{PORT}", "-n", str(given.slots)]
        far.start(sys.executable, *worker, "--credentials", str(home / "workers.credentials"))
        shares = json.loads(server.stdout.readline())
    print(f"round trip {given.milliseconds:g} ms, {given.slots} slots\n")
    for length, share in shares.items():
        print(f"tasks of {float(length):5g} ms: {share:5.0%} of the slots busy")


if __name__ == "__main__":
    main()
