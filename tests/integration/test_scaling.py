"""Clusters that scale up and down and suffer losses: real schedulers, managers, and workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from scaler import Client, ScalerFuture
from tests.integration.settings_rig import Command, command
from tests.short_forms import short_form
from tests.waiting import within

WAIT_SECONDS = 30.0
SCHEDULER = ("scaler_scheduler", "tcp://127.0.0.1:0")


@contextmanager
def scheduler(directory: Path, *flags: str, **environment: str) -> Iterator[tuple[Command, str]]:
    with command(*SCHEDULER, *flags, directory=directory, **environment) as running:
        yield running, running.addresses()["scheduler"]


def dynamic(address: str, slots: int, name: str = "mine") -> tuple[str, ...]:
    """A manager whose workers offer its name."""
    words = ("scaler_worker_manager", "baremetal_native", address)
    return (*words, "-mtc", str(slots), "-wmi", name, "-pwc", name)


def fixed(address: str, slots: int, name: str = "mine") -> tuple[str, ...]:
    return ("scaler_cluster", address, "-n", str(slots), "-wmi", name, "-pwc", name)


def started_units(manager: Command) -> int:
    """Return how many units a manager has started so far, according to its log."""
    lines = [line for line in manager.output().splitlines() if "runner: started " in line]
    return sum(line.count(",") + 1 for line in lines)


def values(futures: Sequence[ScalerFuture]) -> list[object]:
    return [future.result(WAIT_SECONDS) for future in futures]


# -- growing


# -- a policy of the user's own, which makes the cluster come and go


def note_run(path: str, number: int) -> int:
    """Record a running task in one write; some take longer, so that some workers are always busy."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{number} {os.getppid()}\n".encode())
    os.close(descriptor)
    time.sleep(number % 3 * 0.1)  # their durations keep workers busy
    return number


# -- losing


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # processors exit with the agent that was killed before them
            process.kill()


def agents_of(manager: Command, count: int) -> list[psutil.Process]:
    """Wait until the manager has this many agents with live processors, and return the agents."""

    def ready() -> list[psutil.Process]:
        return [agent for agent in psutil.Process(manager.pid).children() if len(family(agent)) >= 3]

    assert within(WAIT_SECONDS, lambda: len(ready()) == count), f"{len(ready())} agents"
    return ready()


def family(agent: psutil.Process) -> list[psutil.Process]:
    """Return an agent, its fork server, and its processors."""
    try:
        return [agent, *agent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize(
    ("way", "slots", "units"), short_form([(fixed, 9, 2), (dynamic, 2, 2)]), ids=["fixed", "dynamic"]
)
def test_lost_workers_are_replaced_and_their_tasks_finish(
    way: Callable[..., tuple[str, ...]], slots: int, units: int, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    losses: list[Callable[[list[psutil.Process]], list[psutil.Process]]] = [
        lambda agents: agents,
        lambda agents: family(agents[0])[-1:] + family(agents[1]),
    ]
    with (
        scheduler(tmp_path) as (_, address),
        command(*way(address, slots), directory=tmp_path) as manager,
        Client(address) as client,
    ):
        for number, victims in enumerate(losses):
            seen = notes.stat().st_size if number else 0
            futures = [client.submit(note_run, str(notes), item) for item in range(2 * slots + 2)]
            assert within(WAIT_SECONDS, lambda: notes.exists() and notes.stat().st_size > seen)  # noqa: B023
            kill(victims(agents_of(manager, units)))
            assert values(futures) == list(range(2 * slots + 2))
        assert within(WAIT_SECONDS, lambda: manager.output().count("killed by signal 9 (SIGKILL)") >= units + 1)
        assert started_units(manager) <= units * 2 + 1


# -- ending


def do_harm(place: str) -> None:
    """Ignore stop requests, and start children, one of which leaves the group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    within_group = subprocess.Popen(["sleep", "600"])
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
    part = Path(place + ".part")
    part.write_text(f"{within_group.pid} {daemon.pid}")
    part.rename(place)
    signal.pause()


def test_exiting_manager_leaves_no_workers_or_tasks_behind(tmp_path: Path) -> None:
    ways = [(fixed, signal.SIGKILL), (dynamic, signal.SIGKILL), (fixed, signal.SIGINT), (dynamic, signal.SIGTERM)]
    with scheduler(tmp_path) as (_, address), Client(address) as client:
        managers, left = [], []
        for number, (way, _) in enumerate(ways):
            name, *arguments = way(address, 1, f"m{number}")
            managers.append(Command(name, arguments, {}, tmp_path))
        try:
            for number in range(len(ways)):
                place = str(tmp_path / f"place{number}")
                client.submit_verbose(do_harm, (place,), capabilities={f"m{number}": None}, retries=0)
            for number, (manager, (_, how)) in enumerate(zip(managers, ways, strict=True)):
                place_of = tmp_path / f"place{number}"
                assert within(WAIT_SECONDS, place_of.exists)
                left += manager.descendants() + [psutil.Process(int(pid)) for pid in place_of.read_text().split()]
                manager.process.send_signal(how)
            _, alive = psutil.wait_procs(left, timeout=WAIT_SECONDS)
            assert alive == []
            assert [manager.process.wait(WAIT_SECONDS) for manager in managers] == [-9, -9, 0, 0]
        finally:
            for manager in managers:
                manager.close()
