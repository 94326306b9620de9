"""Queries of a client about its tasks: why they wait, how they ended, and their output."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError, ProcessorDiedError
from scaler.monitor.messages import Explain, Explained
from tests.integration.client_rig import RigScheduler
from tests.waiting import until, wait_for_file

SECONDS = 20


def talk(name: str) -> int:
    print(name, "\x1b[31mred")
    sys.stderr.write("tab\there\n")
    return 1


def begin(path: str) -> None:
    print("begun")
    wait_for_file(path)
    print("over", end="")


def test_task_is_explained_while_running_and_after_its_end(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Client(cluster.get_address()) as client:
        future = client.submit(begin, str(go))
        text = until(lambda: (found := client.explain(future)).startswith("it runs on worker ") and found)
        go.touch()
        future.result(SECONDS)
        worker = text.removeprefix("it runs on worker ").partition(" (")[0]
        assert client.explain(future).startswith("it ended ")
        assert f"on worker {worker}, and took " in client.explain(future)


def test_future_explains_itself_and_client_its_oldest_task(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        assert client.explain() == "all tasks of this client have ended"
        future = client.submit_verbose(abs, (1,), capabilities={"gpu": 2})
        assert future.explain().startswith("no worker offers gpu=2, and no worker manager could start one")
        assert client.explain() == f"abs ({future.task_id.hex()}): {future.explain()}"
        more = [client.submit_verbose(abs, (1,), capabilities={"gpu": 2}) for _ in range(2)]
        assert client.explain().endswith("; 2 other tasks of this client have not ended")
        waiting = until(lambda: client.cluster().waiting)
        assert waiting[0].reason.startswith("no worker offers gpu=2")
        for each in (future, *more):
            each.cancel()
        until(lambda: future.explain().startswith("it was cancelled "))
    with pytest.raises(ClientClosedError):
        future.explain()


def test_graph_futures_and_map_results_explain_themselves(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        graph = {"a": (abs, -1), "b": (abs, "a")}
        futures = client.get(graph, ["a", "b"], block=False, gpu=2)
        assert "it needs the results of 1 task: abs()" in futures["b"].explain()
        assert client.explain().startswith("node 'a': no worker offers gpu=2")
        for each in futures.values():
            each.cancel()
        results = client.imap(abs, range(-3, 0), gpu=2)
        reader = threading.Thread(target=lambda: list(results))
        reader.start()  # items are sent as results are requested
        asked = until(lambda: "no worker offers gpu=2" in (text := results.explain()) and text)
        assert asked.startswith("item 0 of imap over abs: no worker offers")
        results.close()
        reader.join(SECONDS)
        done = client.imap(abs, [1])
        assert list(done) == [1]
        assert done.explain() == "all items of imap over abs sent so far have ended"


def test_task_output_is_read_with_escaped_control_characters(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        future = client.submit(talk, "loud")
        future.result(SECONDS)
        output = client.logs(future)
        assert (output.stdout, output.stderr, output.cut_bytes) == ("loud \\x1b[31mred\n", "tab\there\n", 0)
        assert str(output) == "loud \\x1b[31mred\n--- stderr ---\ntab\there\n"
        quiet = client.submit(abs, -1)
        quiet.result(SECONDS)
        assert str(client.logs(quiet)) == ""


def test_task_output_can_be_read_while_the_task_runs(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Client(cluster.get_address()) as client:
        future = client.submit(begin, str(go))
        assert until(lambda: client.logs(future).stdout) == "begun\n"
        assert not future.done()
        go.touch()
        future.result(SECONDS)
        assert client.logs(future).stdout == "begun\nover"


def test_output_of_failed_tasks_is_also_kept(cluster: SchedulerClusterCombo) -> None:
    def print_and_raise() -> None:
        print("before")
        raise ValueError

    def print_and_die() -> None:
        print("last words")
        os.kill(os.getpid(), signal.SIGKILL)

    with Client(cluster.get_address()) as client:
        raised = client.submit(print_and_raise)
        assert isinstance(raised.exception(SECONDS), ValueError)
        assert client.logs(raised).stdout == "before\n"
        died = client.submit_verbose(print_and_die, retries=0)
        assert isinstance(died.exception(SECONDS), ProcessorDiedError)
        until(lambda: client.logs(died).stdout == "last words\n")


# -- with a scheduler that a test plays


def test_threads_wait_only_for_their_own_answers() -> None:
    with RigScheduler() as scheduler, Client(scheduler.address, timeout_seconds=SECONDS) as client:
        future = client.submit(abs, 1)
        scheduler.next_tasks(1)
        found: list[str] = []
        threads = [threading.Thread(target=lambda: found.append(client.explain(future))) for _ in range(4)]
        for thread in threads:
            thread.start()
        scheduler.say(Explained(future.task_id, "the answer to no question", number=10))
        numbers = [scheduler.next(Explain).number for _ in threads]
        for number in reversed(numbers):
            scheduler.say(Explained(future.task_id, f"because {number}", number=number))
        for thread in threads:
            thread.join(SECONDS)
        assert sorted(found) == [f"because {number}" for number in sorted(numbers)]


def test_asks_again_after_the_scheduler_has_lost_its_state() -> None:
    with RigScheduler() as scheduler, Client(scheduler.address, timeout_seconds=SECONDS) as client:
        future = client.submit(abs, 1)
        scheduler.next_tasks(1)
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(client.explain(future)))
        thread.start()
        scheduler.next(Explain)
        address = scheduler.address
        scheduler.close()
        with RigScheduler(address) as successor:
            successor.next_tasks(1)
            number = successor.next(Explain).number
            successor.say(Explained(future.task_id, "I am new here", number=number))
            thread.join(SECONDS)
            assert found == ["I am new here"]
