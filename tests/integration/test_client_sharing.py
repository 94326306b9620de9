"""One client shared by threads, forks, and other clients; and how clients close."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed, wait
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError, ObjectLostError, ScalerError, UsageError

SECONDS = 20


@pytest.fixture
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


def add(x: int, y: int) -> int:
    return x + y


def test_thirty_two_threads_share_one_client_for_everything(client: Client) -> None:
    start = threading.Barrier(32)

    def use(number: int) -> list[Any]:
        start.wait(SECONDS)
        dropped = client.submit(time.sleep, 60)
        futures = [client.submit(add, number, other) for other in range(10)]
        chained = client.submit(add, futures[0], futures[1])
        was_cancelled = dropped.cancel()
        mapped = client.map(abs, range(-number - 5, -number))
        graph = client.get({"a": number, "b": (add, "a", "a")}, ["b"])["b"]
        waited = {future.result() for future in wait(futures, SECONDS).done}
        completed = {future.result() for future in as_completed(futures, SECONDS)}
        return [waited == completed, sum(waited), chained.result(SECONDS), mapped, graph, was_cancelled]

    before = threading.active_count()
    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(use, range(32)))
    for number, result in enumerate(results):
        mapped = list(range(number + 5, number, -1))
        assert result == [True, 10 * number + 45, 2 * number + 1, mapped, 2 * number, True]
    assert threading.active_count() <= before  # an earlier client may have been closing


def test_clients_cannot_see_each_other(client: Client, cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as other:
        mine, theirs = client.submit(time.sleep, 60), other.submit(time.sleep, 60)
        kept = client.send_object([1])
        with pytest.raises(UsageError, match="belongs to another client"):
            other.submit(len, kept)
        with pytest.raises(UsageError, match="another client"):
            other.submit(add, mine, 1)
        other.clear()
        assert theirs.cancelled()
        assert not mine.done()
        assert other.submit(add, 1, 1).result(SECONDS) == 2
        assert client.submit(len, kept).result(SECONDS) == 1
        assert not mine.done()
        assert mine.cancel()


def test_clear_ends_tasks_and_references_and_the_client_continues(client: Client) -> None:
    finished, large = client.submit(add, 1, 1), client.submit(bytes, 1_000_000)
    assert (finished.result(SECONDS), len(large.result(SECONDS))) == (2, 1_000_000)
    running = client.submit(time.sleep, 60)
    reference = client.send_object("object", name="thing")
    client.clear()
    client.clear()
    assert running.cancelled()
    assert finished.result() == 2
    assert repr(reference) == "<ObjectReference 'thing' cleared>"
    for use in (
        lambda: client.submit(len, reference).result(),
        lambda: client.get({"r": reference, "n": (len, "r")}, ["n"]),
    ):
        with pytest.raises(ObjectLostError, match="'thing' was cleared: send it again"):
            use()
    ended = client.map(len, [reference, "ab"], chunk_size=2, return_exceptions=True)
    assert isinstance(ended[0], ObjectLostError)
    assert ended[1] == 2
    assert client.submit(add, finished, 1).result(SECONDS) == 3
    assert client.submit(len, large).result(SECONDS) == 1_000_000


def uses(client: Client, future: Any, reference: Any) -> dict[str, Callable[[], object]]:
    """Return all calls that use a client, its future, or its reference."""
    return {
        "submit": lambda: client.submit(add, 1, 1),
        "submit_verbose": lambda: client.submit_verbose(add, (1, 1)),
        "map": lambda: client.map(abs, [1]),
        "get": lambda: client.get({}, []),
        "send_object": lambda: client.send_object(1),
        "clear": client.clear,
        "shutdown": client.shutdown,
        "argument": lambda: client.submit(add, future, 1),
        "reference": lambda: client.submit(len, reference),
        "result": lambda: future.result(1),
        "exception": lambda: future.exception(1),
        "cancel": future.cancel,
        "callback": lambda: future.add_done_callback(print),
        "wait": lambda: wait([future], 1),
        "as_completed": lambda: list(as_completed([future], 1)),
        "await": lambda: future.__await__().send(None),
    }


def answers(client: Client, future: Any, reference: Any) -> dict[str, str]:
    found = {}
    for name, use in uses(client, future, reference).items():
        try:
            found[name] = repr(use())
        except ClientClosedError as error:
            found[name] = "refused" if "create a new client after a fork" in str(error) else str(error)
        except ScalerError as error:
            found[name] = repr(error)
    return found


def test_forked_child_is_refused_but_may_create_a_client(client: Client, cluster: SchedulerClusterCombo) -> None:
    future, reference = client.submit(time.sleep, 60), client.send_object([1])
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = answers(client, future, reference)
            client.disconnect()
            with Client(cluster.get_address()) as own:
                found["own"] = repr(own.submit(add, 1, 1).result(SECONDS))
            os.write(theirs, pickle.dumps(found))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        found = pickle.load(pipe)
    os.waitpid(child, 0)
    assert found == dict.fromkeys(uses(client, future, reference), "refused") | {"own": "2"}
    assert future.cancel()
    assert client.submit(len, reference).result(SECONDS) == 1


def scaler_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("scaler-client")}


def test_clients_leave_no_thread_and_unreferenced_ones_close(cluster: SchedulerClusterCombo) -> None:
    before = scaler_threads()
    for _ in range(5):
        with Client(cluster.get_address()) as client:
            client.submit(add, 1, 1)
    assert scaler_threads() == before
    forgotten = Client(cluster.get_address())
    future = forgotten.submit(add, 1, 1)
    (thread,) = scaler_threads() - before
    del forgotten
    gc.collect()
    assert future.result(SECONDS) == 2, "submitted tasks still end"
    thread.join(SECONDS)
    assert not thread.is_alive()


PROGRAM = """
import atexit, sys
from scaler import Client
client = Client(sys.argv[1])
atexit.register(lambda: print("at exit", client.submit(pow, 2, 3).result(20), flush=True))
print(client.submit(pow, 2, 2).result(20), flush=True)
"""


def test_client_works_in_exit_handlers(cluster: SchedulerClusterCombo) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, cluster.get_address()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "4\nat exit 8\n", "")


def test_client_shuts_down_an_unprotected_scheduler_with_its_workers() -> None:
    with SchedulerClusterCombo(n_workers=1, protected=False) as combo:
        client = Client(combo.get_address())
        future = client.submit(time.sleep, 60)
        client.shutdown()
        with pytest.raises((ScalerError, CancelledError)):
            future.result(SECONDS)
        with pytest.raises(ClientClosedError, match="disconnected"):
            client.submit(add, 1, 1)


def test_multiprocessing_works_with_a_live_client(client: Client) -> None:
    future = client.submit(add, 1, 1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
        pool.close()
        pool.join()
    assert future.result(SECONDS) == 2
