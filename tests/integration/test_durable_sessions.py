"""Durable sessions with real processes: programs exit, and new ones continue their work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import RefusedError, UsageError
from tests.waiting import until, wait_for_file

PROGRAM = """
import os, sys
from pathlib import Path
from scaler import Client
def noted(log, value):
    with open(log, "a") as file:
        file.write(f"{value}\\n")
    return value * 2
client = Client(sys.argv[1], session=sys.argv[2])
futures = [client.submit(noted, sys.argv[3], value, key=f"value {value}") for value in range(4)]
if sys.argv[4] == "die":
    futures[0].result()
    os._exit(1)
print([future.result() for future in futures])
"""


def run_program(cluster: SchedulerClusterCombo, session: str, log: Path, what: str) -> str:
    command = [sys.executable, "-c", PROGRAM, cluster.get_address(), session, str(log), what]
    return subprocess.run(command, capture_output=True, text=True, check=what != "die", timeout=60).stdout


@pytest.fixture
def session() -> str:
    return f"session-{uuid4().hex}"


@contextmanager
def client_of(cluster: SchedulerClusterCombo, session: str) -> Iterator[Client]:
    client = Client(cluster.get_address(), session=session)
    try:
        yield client
    finally:
        client.disconnect()


def noted(log: str, value: int) -> int:
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"{value}\n")
    return value * 2


def test_rerunning_a_script_repeats_nothing(cluster: SchedulerClusterCombo, session: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_program(cluster, session, log, "die")
    assert run_program(cluster, session, log, "go on") == "[0, 2, 4, 6]\n"
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3"]


def test_another_program_gets_the_futures_and_results(cluster: SchedulerClusterCombo, session: str) -> None:
    with client_of(cluster, session) as client:
        client.submit(bytes, 3_000_000, key="large")
        client.submit_verbose(abs, (-2,), name="small", tag="numbers")
        client.submit_verbose(int, ("x",), tag="numbers")
    with client_of(cluster, session) as client:
        large, small, wrong = client.futures()
        assert len(large.result(10)) == 3_000_000
        assert small.result(10) == 2
        assert isinstance(wrong.exception(10), ValueError)
        assert client.futures(key="large") == [large]
        assert client.futures("small") == [small]
        assert client.futures(tag="numbers") == [small, wrong]
        assert client.submit(len, large).result(10) == 3_000_000


def doubled_after(path: str, value: int) -> int:
    wait_for_file(path)
    return 2 * value


def test_inner_nodes_of_a_graph_have_their_values_for_another_program(
    cluster: SchedulerClusterCombo, session: str, tmp_path: Path
) -> None:
    after = partial(doubled_after, str(tmp_path / "go"))
    with client_of(cluster, session) as client:
        start = client.submit(after, 7)
        outer = client.get({"a": (after, start), "b": (bytes, "a"), "c": (len, "b")}, ["c"], block=False)["c"]
        assert [future.task_id for future in client.futures()] == [start.task_id, outer.task_id]
        client.get({"a": (after, 1_000_000), "b": (bytes, "a"), "c": (len, "b")}, ["c"], block=False)
    with client_of(cluster, session) as client:
        found = client.futures()
        (tmp_path / "go").touch()
        values = [14, 28, bytes(28), 28, 2_000_000, bytes(2_000_000), 2_000_000]
        assert [future.result(20) for future in found] == values
        assert [future.result(20) for future in client.futures()] == values


def test_map_with_keys_resumes(cluster: SchedulerClusterCombo, session: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for values in (range(3), range(5)):
        with client_of(cluster, session) as client:
            logs, keys = [str(log)] * len(values), [f"v{value}" for value in values]
            assert client.map(noted, logs, values, keys=keys) == [2 * value for value in values]
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3", "4"]


def test_session_in_use_names_its_program(cluster: SchedulerClusterCombo, session: str) -> None:
    text = rf"in use by .*\|{os.getpid()}: stop that client first"
    with client_of(cluster, session), pytest.raises(RefusedError, match=text):
        Client(cluster.get_address(), session=session)


def test_methods_that_need_a_session_raise_a_clear_error(
    cluster: SchedulerClusterCombo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(cluster.get_address()) as client:
        for call in (
            client.futures,
            lambda: client.map(abs, [1], keys=["a"]),
            lambda: client.submit_verbose(abs, (1,), key="a"),
        ):
            with pytest.raises(UsageError, match=r"Client\(session=\.\.\.\)"):
                call()
    with pytest.raises(UsageError, match="session is '', but must be a string"):
        Client(cluster.get_address(), session="")
    monkeypatch.delenv("SCALER_ADDRESS", raising=False)
    with pytest.raises(UsageError, match=r"needs (an|the scheduler.s) address"):
        Client(session="nightly")


def test_sessions_are_listed_shown_cancelled_and_removed(
    cluster: SchedulerClusterCombo, session: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def sessions(*arguments: str) -> str:
        assert run_command("scaler", ["sessions", *arguments, cluster.get_address()]) == 0
        return capsys.readouterr().out

    with client_of(cluster, session) as client:
        client.submit(abs, -1, key="first key").result(10)
        client.submit(wait_for_file, str(tmp_path / "never"), key="waits")
        until(lambda: len(client.futures()) == 2)
    line = next(line for line in sessions("list").splitlines() if line.startswith(session))
    assert line.split()[2:5] == ["1", "1", "0"]
    assert "ago, by" in line
    shown = sessions("show", session)
    assert "first key" in shown
    assert "success" in shown
    assert "unfinished" in shown
    assert "cancelled 1 unfinished task" in sessions("cancel", session)
    until(lambda: "unfinished" not in sessions("show", session))
    assert "removed it with 2 results" in sessions("remove", session)
    assert session not in sessions("list")
    assert run_command("scaler", ["sessions", "show", session, cluster.get_address()]) != 0
    assert "this key has no session" in capsys.readouterr().err
