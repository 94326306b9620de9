"""A cancel or `disconnect` in another thread ends every wait of a thread with a client."""

from __future__ import annotations

import concurrent.futures
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError, ClientDisconnectedError
from tests.waiting import until, wait_for_file

SECONDS = 20


def hold(gate: str) -> None:
    Path(f"{gate}.began").touch()
    wait_for_file(gate)


def asks_for_workers(_: str) -> bool:
    stacks = (traceback.extract_stack(frame) for frame in sys._current_frames().values())  # noqa: SLF001 (no public name)
    return any(frame.name == "wait_for_workers" for stack in stacks for frame in stack)


def has_begun(gate: str) -> bool:
    return Path(f"{gate}.began").exists()


Wait = Callable[[Client, str], Any]
WAITS: dict[str, tuple[Wait, Callable[[str], bool]]] = {
    "result": (lambda client, gate: client.submit(hold, gate).result(), has_begun),
    "gather": (lambda client, gate: client.gather([client.submit(hold, gate)]), has_begun),
    "as_completed": (
        lambda client, gate: [each.result() for each in client.as_completed([client.submit(hold, gate)])],
        has_begun,
    ),
    "wait": (lambda client, gate: concurrent.futures.wait([client.submit(hold, gate)]).done.pop().result(), has_begun),
    "map": (lambda client, gate: client.map(hold, [gate] * 3), has_begun),
    "imap": (lambda client, gate: list(client.imap(hold, repeat(gate))), has_begun),
    "get": (lambda client, gate: client.get({"a": (partial(hold, gate),)}, ["a"]), has_begun),
    "executor": (lambda client, gate: list(client.executor().map(hold, [gate])), has_begun),
    "run": (lambda client, gate: raised(client.run(hold, gate)), has_begun),
    "wait_for_workers": (lambda client, _: client.wait_for_workers(99), asks_for_workers),
}


def raised(outcomes: dict[str, Any]) -> None:
    raise outcomes.popitem()[1]


@pytest.mark.parametrize("what", WAITS)
def test_disconnect_ends_waits_in_other_threads(cluster: SchedulerClusterCombo, what: str, tmp_path: Path) -> None:
    wait, is_waiting = WAITS[what]
    gate = tmp_path / "gate"
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as client, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait, client, str(gate))
        try:
            until(lambda: is_waiting(str(gate)))
            client.disconnect()
            assert isinstance(waiting.exception(SECONDS), ClientClosedError | ClientDisconnectedError | CancelledError)
        finally:
            gate.touch()


def test_cancelled_tasks_are_cancelled_errors_among_the_results(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as client, ThreadPoolExecutor(2) as threads:
        first, second = client.submit(hold, str(gate)), client.submit_verbose(abs, (-1,), capabilities={"moon": 1})
        gathered = threads.submit(client.gather, {"a": [first, second]}, return_exceptions=True)
        mapped = threads.submit(client.map, wait_for_file, [str(gate)], cache=True, return_exceptions=True)
        until(lambda: has_begun(str(gate)) and client.cancel("wait_for_file"))
        second.cancel()
        first.cancel()
        found = gathered.result(SECONDS)["a"] + mapped.result(SECONDS)
        assert [type(each) for each in found] == [CancelledError] * 3
