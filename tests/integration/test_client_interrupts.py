"""Ctrl-C at every step of a call: the call ends, and the client with all shared state continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from types import FrameType
from typing import Any

import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from tests.short_forms import short_form

RESULT_SECONDS = 20.0

# If the step is in a garbage-collected object, Python reports the interrupt and continues.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as connected:
        connected.submit(int).result(20)
        yield connected


def is_interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Call, with a Ctrl-C at one of Python's check points; False: the call ended earlier."""
    left = step

    def look(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal left
        if event in {"call", "c_return"}:
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


def map_over_two(client: Client) -> object:
    return client.map(abs, [-1, -2], chunk_size=1)


def imap_over_two(client: Client) -> object:
    return list(client.imap(abs, [-1, -2], chunk_size=1))


def submit_and_wait(client: Client) -> object:
    first = client.submit(abs, -1)
    return client.submit(max, first, 2).result(RESULT_SECONDS)


def get(client: Client) -> object:
    return client.get({"a": 1, "b": (abs, "a"), "c": (max, "a", "b")}, ["c"])


@pytest.mark.parametrize("call", short_form([submit_and_wait, map_over_two, imap_over_two, get], 2))
def test_client_survives_ctrl_c_at_any_point(client: Client, call: Callable[[Client], Any]) -> None:
    call(client)  # imports its modules: Python 3.11 turns a Ctrl-C within `__set_name__` into a RuntimeError
    step = 1
    while is_interrupted_at(step, lambda: call(client)):
        assert client.submit(abs, -step).result(RESULT_SECONDS) == step
        step += 1
    assert step > 20


@pytest.fixture(scope="module")
def narrow() -> Iterator[str]:
    """A scheduler that accepts three waiting tasks."""
    with SchedulerClusterCombo(n_workers=1, max_number_of_tasks_waiting=3) as combo:
        yield combo.get_address()


def test_every_task_can_be_cancelled(narrow: str) -> None:
    with Client(narrow, timeout_seconds=RESULT_SECONDS) as client:
        never = client.submit_verbose(abs, (-1,), capabilities={"nowhere": None})
        step = 1
        while is_interrupted_at(step, lambda: client.submit(abs, never)):
            assert client.submit(abs, -step).result(RESULT_SECONDS) == step
            step += 1
        assert step > 20


def test_cancelling_a_future_survives_ctrl_c_at_any_point(client: Client) -> None:
    def interrupted(future: ScalerFuture, step: int) -> bool:
        found = is_interrupted_at(step, future.cancel)
        future.cancel()
        with pytest.raises(CancelledError):
            future.result(RESULT_SECONDS)
        return found

    step = 1
    # No worker offers this, so the task waits until cancelled.
    while interrupted(client.submit_verbose(abs, (-1,), capabilities={"nowhere": None}), step):
        step += 1
    assert step > 5
