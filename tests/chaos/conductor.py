"""A chaos run: `python -m tests.chaos.conductor --seconds 1800 --seed 7`, which is `make chaos`.

A real cluster runs a mixed workload while the fault script attacks it. Then all faults are healed, the clients wait for
their results, and the checker reads the history. Exit code 0: every promise held, and nothing is left behind.
"""

from __future__ import annotations

import argparse
import heapq
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil

from tests.chaos.checker import Verdict, check
from tests.chaos.cluster import ClientProcess, Cluster, leave_no_descriptors, send
from tests.chaos.faults import EVERY_SECONDS, STORE_PROXY, Fault, Kind, kinds_without, script
from tests.chaos.history import ClientGone, History, Struck, now, read
from tests.chaos.proxy import Proxy

CLIENTS = 2
DRAIN_SECONDS = 90.0
"""Time after the last fault by which every future must have ended."""
LEFT_OUT = ("longest stop",)
"""Faults that occur only on request, because the cluster does not promise to survive them."""
CLOCK_JUMPS = (-86400.0, -30.0, 45.0, 400 * 86400.0)


@dataclass(slots=True)
class Result:
    """Result of a run. left: processes, files, and shared memory that remained after the end."""

    verdict: Verdict
    left: list[str] = field(default_factory=list)
    skipped: int = 0
    """Faults without an existing target."""

    @property
    def problems(self) -> list[str]:
        return self.verdict.violations + [f"left behind: {each}" for each in self.left]


class Conductor:
    """Performs the fault script on a cluster."""

    def __init__(self, cluster: Cluster, until: float, report: Callable[[str], None]) -> None:
        self.skipped = 0
        self._cluster = cluster
        self._until = until
        self._report = report
        self._history = History(cluster.history, "faults")
        self._heals: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._names = count()
        for number in range(CLIENTS):
            self._start_client(is_far=bool(number % 2))
        cluster.start_client(cluster.order("nightly", is_far=False, until=until, session="nightly"))

    def run(self, faults: Sequence[Fault]) -> None:
        began = now()
        for fault in faults:
            self._wait(began + fault.at)
            struck = self._strike(fault)
            where = struck or "no target"
            self._report(f"{now() - began:7.1f} s  {fault}: {where}")
            if struck is None:
                self.skipped += 1
            else:
                self._history.add(Struck(now(), fault.kind, fault.target))
        self._wait(self._until)
        while self._heals:
            heapq.heappop(self._heals)[2]()

    def _wait(self, until: float) -> None:
        """Heal faults as due until this time."""
        while True:
            due = self._heals[0][0] if self._heals else until
            time.sleep(max(0.0, min(due, until) - now()))  # waits for the next scheduled time
            if not self._heals or self._heals[0][0] > until:
                return
            heapq.heappop(self._heals)[2]()

    def _later(self, seconds: float, heal: Callable[[], None]) -> None:
        heapq.heappush(self._heals, (now() + seconds, next(self._order), heal))

    def _start_client(self, *, is_far: bool) -> None:
        cluster = self._cluster
        cluster.start_client(cluster.order(f"client{next(self._names)}", is_far=is_far, until=self._until))

    def _strike(self, fault: Fault) -> str | None:
        """Perform a fault. Returns its target, or None if none exists."""
        cluster = self._cluster
        match fault.kind:
            case "kill" | "stop" | "long stop" | "longest stop" | "terminate" | "no descriptors" | "revoke key":
                return self._strike_process(fault)
            case "clock jump":
                jump = CLOCK_JUMPS[int(fault.pick * len(CLOCK_JUMPS))]
                cluster.jump_clock(jump)
                self._later(fault.seconds, lambda: cluster.jump_clock(0.0))
                return f"by {jump:g} s"
            case "full disk":
                if not cluster.has_disk:
                    return None
                cluster.fill_disk()
                self._later(fault.seconds, cluster.empty_disk)
                return "the disk"
            case "remove":
                files = cluster.store_files()
                if not files:
                    return None
                chosen = files[int(fault.pick * len(files))]
                chosen.unlink(missing_ok=True)
                return chosen.name
            case _:
                proxy = self._proxy(fault)
                if proxy is None:
                    return None
                match fault.kind:
                    case "reset":
                        proxy.reset()
                    case "half-open":
                        proxy.half_open()
                    case "reorder":
                        proxy.reorder()
                    case "black hole" | "long black hole":
                        proxy.black_hole()
                        self._later(fault.seconds, proxy.heal)
                    case "delay":
                        proxy.delay(0.05 + fault.pick)
                        self._later(fault.seconds, proxy.heal)
                    case _:
                        raise ValueError(f"no such fault: {fault.kind}")
                return "all connections"

    def _proxy(self, fault: Fault) -> Proxy | None:
        if fault.target != STORE_PROXY:
            return self._cluster.proxies[fault.target]
        living = self._cluster.stores.living()
        return living[int(fault.pick * len(living))][1] if living else None

    def _strike_process(self, fault: Fault) -> str | None:
        if fault.target == "client":
            return self._strike_client(fault)
        if fault.target == "launcher" and not self._cluster.is_durable:
            return None  # without a state directory, tasks do not survive the end of both servers
        targets = fault.target.split(" and ")
        chosen: list[psutil.Process] = []
        for target in targets:
            found = self._cluster.find(target)
            if not found:
                return None
            chosen.append(found[int(fault.pick * len(found))])
        for process in chosen:
            with suppress(psutil.NoSuchProcess):
                self._do(fault, process)
        return " and ".join(str(process.pid) for process in chosen)

    def _do(self, fault: Fault, process: psutil.Process) -> None:
        match fault.kind:
            case "kill":
                send(process, signal.SIGKILL)
            case "terminate":
                send(process, signal.SIGTERM)
            case "stop" | "long stop" | "longest stop":
                send(process, signal.SIGSTOP)
                self._later(fault.seconds, lambda: send(process, signal.SIGCONT))
            case _:
                limits = leave_no_descriptors(process)
                self._later(fault.seconds, lambda: _restore(process, limits))

    def _strike_client(self, fault: Fault) -> str | None:
        cluster = self._cluster
        far_only = fault.kind == "revoke key"
        clients = [each for each in cluster.clients if not far_only or self._has_own_key(each)]
        if not clients:
            return None
        client = clients[int(fault.pick * len(clients))]
        name = client.order.name
        if fault.kind.endswith("stop"):
            process = psutil.Process(client.process.pid)
            self._do(fault, process)
            return name
        if not client.order.session:
            self._history.add(ClientGone(now(), name, fault.kind))
        if fault.kind == "kill":
            _end(client)
        else:
            cluster.revoke(name)
            self._later(5.0, lambda: _end(client))
        cluster.clients.remove(client)
        if client.order.session:  # the same program again: none of its futures are excused
            cluster.start_client(client.order)
            return name
        self._start_client(is_far=client.order.address == cluster.far_address)
        return name

    @staticmethod
    def _has_own_key(client: ClientProcess) -> bool:
        return client.order.credentials is not None and not client.order.session


def _end(client: ClientProcess) -> None:
    client.process.kill()
    client.process.wait()


def _restore(process: psutil.Process, limits: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)


def run(
    directory: Path,
    seed: int,
    seconds: float,
    kinds: Sequence[Kind],
    report: Callable[[str], None],
    every_seconds: float = EVERY_SECONDS,
) -> Result:
    """Run a cluster in the directory, inject faults for `seconds`, and check the history.

    every_seconds: the mean interval between two faults.
    """
    cluster = Cluster(directory, seed)
    report(f"the cluster has {'a' if cluster.is_durable else 'no'} state directory")
    try:
        until = now() + seconds
        conductor = Conductor(cluster, until, report)
        conductor.run(list(script(seed, seconds, kinds, every_seconds)))
        report(f"{seconds:7.1f} s  healed; the clients wait for their pending results")
        deadline = now() + DRAIN_SECONDS
        for client in cluster.clients:
            with suppress(subprocess.TimeoutExpired):
                client.process.wait(max(0.0, deadline - now()))
        late = [client for client in cluster.clients if client.process.poll() is None]
        codes = {client.order.name: client.process.returncode for client in cluster.clients}
        for client in late:
            _end(client)
    finally:
        left = cluster.stop()
    sessions = {client.order.name for client in cluster.clients if client.order.session}
    verdict = check(read(cluster.history), sessions, in_memory=not cluster.is_durable)
    verdict.lost += [f"{client.order.name} has not ended {DRAIN_SECONDS:g} s after the last fault" for client in late]
    launches = 1 + verdict.strikes["kill launcher"] + cluster.refused_starts
    if cluster.launches > launches:
        verdict.lost.append(f"the launcher was started {cluster.launches} times instead of {launches}")
    verdict.lost += [f"{name} ended with exit code {code}" for name, code in codes.items() if code]
    return Result(verdict, left, conductor.skipped)


def summary(problems: Sequence[str]) -> list[str]:
    """Return one example of each kind of problem, with their number."""
    sorts: dict[str, list[str]] = {}
    for problem in problems:
        sorts.setdefault(re.sub(r"\S*\d\S*", "", problem)[:120], []).append(problem)
    return [f"{len(examples)} such: {examples[0][:400]}" for examples in sorts.values()]


def main() -> int:
    """Run and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="duration of the faults (default: 1800)")
    parser.add_argument("--seed", type=int, default=1, help="determines the faults and the work (default: 1)")
    parser.add_argument(
        "--without", default=",".join(LEFT_OUT), help="kinds of faults and targets to omit, separated by commas"
    )
    parser.add_argument("--keep", action="store_true", help="keep the history and output even on success")
    request = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    kinds = kinds_without([word.strip() for word in request.without.split(",")])
    print(f"seed {request.seed}, {request.seconds:g} s, in {directory}", flush=True)
    result = run(directory, request.seed, request.seconds, kinds, lambda line: print(line, flush=True))
    for name, figure in result.verdict.figures().items():
        print(f"{name:>20} {figure:8,}")
    for name, number in sorted(result.verdict.strikes.items()):
        print(f"{'of them ' + name:>35} {number:6,}")
    print(f"{'left behind':>20} {len(result.left):8,}")
    for line in summary(result.problems):
        print(line)
    if result.problems or request.keep:
        print(f"history and output are kept in {directory}")
    else:
        shutil.rmtree(directory)
    return int(bool(result.problems))


if __name__ == "__main__":
    sys.exit(main())
