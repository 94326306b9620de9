"""Tasks that wait for nested tasks without futures: on one worker, the nested tasks run nevertheless."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.protocol.messages import Suspended
from scaler.worker.processor import context
from tests.integration.worker_rig import Rig, played
from tests.waiting import until, wait_for_file

SECONDS = 20


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as connected:
        yield connected


def double(x: int) -> int:
    return 2 * x


def answers_of_a_queue(client: Client) -> list[int]:
    answers: queue.Queue[int] = queue.Queue()
    for number in range(5):
        client.submit(double, number).add_done_callback(lambda future: answers.put(future.result()))
    return sorted(answers.get() for _ in range(5))


def one_at_a_time(client: Client) -> list[int]:
    guard = threading.Semaphore(1)
    futures = []
    for number in range(5):
        guard.acquire()
        futures.append(client.submit(double, number))
        futures[-1].add_done_callback(lambda _future: guard.release())
    return [future.result() for future in futures]


def ask_again_and_again(client: Client) -> list[int]:
    future = client.submit(double, 3)
    until(future.done)
    return [future.result()]


@pytest.mark.parametrize(
    ("task", "expected"),
    [(answers_of_a_queue, [0, 2, 4, 6, 8]), (one_at_a_time, [0, 2, 4, 6, 8]), (ask_again_and_again, [6])],
)
def test_task_lends_its_slot_in_any_kind_of_wait(client: Client, task: object, expected: list[int]) -> None:
    assert callable(task)
    futures = [client.submit(task, client) for _ in range(2)]
    assert [future.result(SECONDS) for future in futures] == [expected] * 2


def test_computing_task_keeps_its_slot(client: Client, tmp_path: Path) -> None:
    def compute(client: Client, path: Path) -> bool:
        future = client.submit(path.touch)
        deadline = time.process_time() + 0.3
        while time.process_time() < deadline:
            pass
        has_begun = path.exists()
        future.result()
        return has_begun

    assert client.submit(compute, client, tmp_path / "begun").result(SECONDS) is False


# -- the slot, as a processor's threads lend it and take it back


def here() -> context.ProcessorContext:
    found = context.current()
    assert found is not None
    return found


def suspensions(rig: Rig) -> list[bool]:
    return [state for message in rig.messages(Suspended) for state in message.suspended]


@played()
async def test_lent_slot_runs_other_tasks_and_is_reclaimed(rig: Rig, tmp_path: Path) -> None:
    works, ends = tmp_path / "works", tmp_path / "ends"

    def lend_and_take_back() -> int:
        here().lend()
        wait_for_file(works)
        here().take_back()
        wait_for_file(ends)
        return 7

    (lending,) = rig.submit(lend_and_take_back, ())
    await rig.until(lambda: rig.messages(Suspended))
    others = rig.submit(abs, *((-n,) for n in range(20)))
    assert [await rig.value(each) for each in others] == list(range(20))
    assert lending not in rig.outcomes()
    works.touch()
    await rig.until(lambda: suspensions(rig) == [True, False])
    ends.touch()
    assert await rig.value(lending) == 7


@played()
async def test_lending_and_waiting_may_combine_in_any_order(rig: Rig) -> None:
    def lend_and_wait_at_once() -> int:
        slot, stop = here(), threading.Event()

        def lend() -> None:
            while not stop.is_set():
                slot.lend()
                slot.take_back()

        thread = threading.Thread(target=lend)
        thread.start()
        for _ in range(50):
            with slot.blocked():
                pass
        stop.set()
        thread.join()
        return 1

    ids = rig.submit(lend_and_wait_at_once, *[()] * 6)
    assert [await rig.value(each) for each in ids] == [1] * 6
    (after,) = rig.submit(abs, (-3,))
    assert await rig.value(after) == 3
