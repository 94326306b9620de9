"""Tasks that are clients themselves, on one worker: everything they wait for must find a slot."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ProcessorDiedError, TaskRejectedError
from tests.short_forms import short_form
from tests.waiting import until, wait_for_file, within

SECONDS = 50
"""Each level of nesting starts a process, which takes seconds on a busy machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SchedulerClusterCombo]:
    with SchedulerClusterCombo(n_workers=1) as combo:
        yield combo


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


def inc(x: int) -> int:
    return x + 1


def depth(client: Client, levels: int) -> int:
    return 0 if not levels else 1 + int(client.submit(depth, client, levels - 1).result())


def test_tasks_nest_far_deeper_than_the_number_of_workers(client: Client) -> None:
    assert client.submit(depth, client, 6).result(SECONDS) == 6


def first_client() -> list[str]:
    """Return a processor's imports, compilations, and listings while its task opens the first client and waits."""
    seen: list[str] = []
    names = {"import", "compile", "exec", "os.listdir", "os.scandir"}
    sys.addaudithook(lambda event, args: seen.append(f"{event} {args[0]}") if event in names else None)
    with Client() as own:
        own.submit(lambda: 1).result()
    return seen


def after_a_client() -> list[str]:
    with Client() as own:
        found: list[str] = own.submit(first_client).result()
    return found


def test_waiting_level_imports_compiles_and_lists_nothing() -> None:
    nested, loops = (f"{name!r} in __import__('sys').modules" for name in ("scaler.client.client", "asyncio"))
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        assert not client.submit(eval, nested).result(SECONDS)
        assert not client.submit(eval, loops).result(SECONDS)
        assert client.submit(after_a_client).result(SECONDS) == []
        assert client.submit(eval, nested).result(SECONDS), "only a task that has a client imports it"


def naps(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep so far."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        status = (thread / "status").read_text()
        found += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def sleeps_through(pid: int, seconds: float) -> bool:
    """Return whether a process sleeps this long without a break, within five times that long."""
    seen, since = naps(pid), time.monotonic()

    def is_through() -> bool:
        nonlocal seen, since
        before, seen = seen, naps(pid)
        if seen != before:
            since = time.monotonic()
        return time.monotonic() - since > seconds

    return bool(within(5 * seconds, is_through, 0.02))


def watched_while_it_waits(client: Client) -> bool:
    return bool(client.submit(sleeps_through, os.getpid(), 1.5).result())


def test_no_thread_of_a_processor_wakes_up_while_its_task_waits(client: Client) -> None:
    assert client.submit(watched_while_it_waits, client).result(SECONDS)


def all_verbs(client: Client) -> Any:
    with Client() as own:
        return (
            own.map(inc, range(3)),
            own.get({"a": 1, "b": (inc, "a"), "c": (sum, ["a", "b"])}, ["c"]),
            client.submit(sum, client.send_object([1, 2])).result(),
            client.submit(inc, own.submit(inc, 1)).result(),
        )


def test_task_may_map_run_graphs_and_send_objects(client: Client) -> None:
    assert client.submit(all_verbs, client).result(SECONDS) == ([1, 2, 3], {"c": 3}, 3, 3)


async def fibonacci(client: Client, n: int) -> int:
    if n < 2:
        return n
    one, two = await asyncio.gather(client.submit(fibonacci, client, n - 1), client.submit(fibonacci, client, n - 2))
    return int(one + two)


def test_awaiting_task_lends_its_slot(client: Client) -> None:
    assert client.submit(fibonacci, client, 5).result(SECONDS) == 5


def raise_below(client: Client, levels: int) -> None:
    if not levels:
        raise KeyError("at the bottom")
    client.submit(raise_below, client, levels - 1).result()


def test_exception_passes_through_all_levels_of_nested_tasks(client: Client) -> None:
    with pytest.raises(KeyError, match="at the bottom") as caught:
        client.submit(raise_below, client, 3).result(SECONDS)
    assert "in raise_below" in str(caught.value.__cause__)


def stay(path: str) -> None:
    Path(path + ".new").write_text(str(os.getpid()))
    Path(path + ".new").rename(path)
    signal.pause()


def parent(client: Client, path: str, dies: bool) -> None:
    child = client.submit(stay, path)
    while not Path(path).exists():
        wait([child], 0.01)
    if dies:
        os._exit(7)
    child.result()


def gone(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(SECONDS)
    except psutil.NoSuchProcess:
        return True
    return not psutil.pid_exists(pid)


@pytest.mark.parametrize("dies", short_form([True, False]))
def test_ending_a_task_ends_its_unfinished_children(client: Client, tmp_path: Path, dies: bool) -> None:
    path = tmp_path / "child"
    future = client.submit_verbose(parent, (client, str(path), dies), retries=0)
    until(path.exists)
    if dies:
        with pytest.raises(ProcessorDiedError, match="exit code 7"):
            future.result(SECONDS)
    else:
        assert future.cancel()
    assert gone(int(path.read_text()))
    assert client.submit(inc, 1).result(SECONDS) == 2


def look_until_it_runs(client: Client, began: str, gate: str) -> str:
    child = client.submit(hold, began, gate)
    while not Path(began).exists():
        try:
            child.result(0.01)
        except TimeoutError:
            continue
    return "late"


def hold(began: str, gate: str) -> None:
    Path(began).touch()
    wait_for_file(gate)


def test_wait_inside_a_task_times_out_while_the_child_has_the_slot(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    assert client.submit(look_until_it_runs, client, str(tmp_path / "began"), str(gate)).result(SECONDS) == "late"
    gate.touch()
    assert client.submit(inc, 1).result(SECONDS) == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nesting_beyond_max_suspended_tasks_fails_at_once_with_the_reason(soak: bool) -> None:
    limit, levels = (1000, 5000) if soak else (5, 50)
    with SchedulerClusterCombo(n_workers=1, max_suspended_tasks=limit) as combo, Client(combo.get_address()) as client:
        assert client.submit(depth, client, 5).result(SECONDS) == 5
        with pytest.raises(TaskRejectedError, match=f"max_suspended_tasks = {limit}"):
            client.submit(depth, client, levels).result(500)
        assert client.submit(depth, client, 5).result(SECONDS) == 5
        futures = [client.submit(depth, client, 1) for _ in range(20)]
        assert [each.result(SECONDS) for each in futures] == [1] * 20, "tasks wait for their children"
