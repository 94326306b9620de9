"""A client's view of its cluster, and its waits for many futures."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.integration.settings_rig import command
from tests.short_forms import short_form
from tests.waiting import until, wait_for_file

MISSING = "/dev/null/missing"
"""No other test can start it."""


def doubled(number: int) -> int:
    return 2 * number


def divided(path: str, number: int) -> float:
    if not Path(path).exists():
        raise ZeroDivisionError(f"no {number}")
    return 1 / number


def nested_status() -> str:
    try:
        Client().cluster()
    except UsageError as error:
        return str(error)
    return ""


def waits_inside(number: int) -> int:
    with Client() as client:
        return sum(future.result() for future in client.as_completed([client.submit(doubled, number)]))


def test_cluster_state_has_its_rows(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address(), name="asking") as client:
        future = client.submit(doubled, 4)
        assert future.result() == 8
        state = client.cluster()
        assert {row.manager for row in state.workers} == {"local"}
        assert [row.id for row in state.managers] == ["local"]
        assert "asking" in {row.name for row in state.clients}
        assert state.scheduler.rss_bytes > 0
        row = until(lambda: next((row for row in client.tasks("doubled") if row.id == future.task_id.hex()), None))
        assert (row.function, row.state) == ("doubled", "done")
        assert not client.tasks("no such task")
        assert [row.name for row in client.table("workers")] == [row.name for row in state.workers]
        assert [row.id for row in client.table("tasks", function="doubled", limit=1)] == [row.id]
        with pytest.raises(UsageError, match="no table 'worker'; tables: workers, managers, clients, "):
            client.table("worker")
        with pytest.raises(UsageError, match="unknown parameter 'serach'; did you mean 'search'"):
            client.table("tasks", serach="x")
        frame = state.workers.to_pandas()
        assert list(frame["id"]) == [row.id for row in state.workers]
        assert "pass the scheduler's address" in client.submit(nested_status).result()


def test_tasks_are_listed_by_tag(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    path = str(tmp_path / "there")
    with Client(cluster.get_address()) as client:
        tagged = client.options(tags=("nightly", "a, b"))
        failed = [tagged.submit(divided, path, number) for number in (1, 2)]
        client.options(tags=["night"]).submit(doubled, 1).result()
        for future in failed:
            assert isinstance(future.exception(), ZeroDivisionError)
        until(lambda: len(client.tasks(tag="nightly", state="failed")) == 2)
        assert {row.id for row in client.tasks("divided", tag="a, b")} == {future.task_id.hex() for future in failed}
        assert {row.tags for row in client.tasks(tag="nightly")} == {"nightly, a, b"}
        until(lambda: client.tasks(tag="night", state="done"))
        assert not client.tasks(tag="nigh")


def test_unfinished_tasks_of_a_name_are_cancelled(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with Client(cluster.get_address()) as client:
        gate = tmp_path / "gate"
        waiting = [client.submit_verbose(wait_for_file, (gate,), name="waiting") for _ in range(3)]
        other = client.submit(wait_for_file, gate)
        assert client.cancel("waiting") == 3
        assert all(future.cancelled() for future in waiting)
        gate.touch()
        other.result()
        assert client.cancel("waiting") == 0
        for arguments in ({}, {"name": "a", "tag": "b"}):
            with pytest.raises(UsageError, match="pass the name or tag"):
                client.cancel(**arguments)
        assert client.cancel(tag="b") == 0


def test_waits_for_workers(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        client.wait_for_workers(2, timeout=20)  # the combo's n_workers
        with pytest.raises(TimeoutError, match=r"waited 1 s for 1,000 workers; connected: 2"):
            client.wait_for_workers(1000, timeout=1)
        with pytest.raises(TimeoutError, match="no answer yet"):
            client.wait_for_workers(1000, timeout=0)
        with pytest.raises(UsageError, match="must be an integer"):
            client.wait_for_workers(-1)


def process_id(path: str = "") -> int:
    if path:
        wait_for_file(Path(path))
    return os.getpid()


def test_function_runs_once_on_every_worker() -> None:
    with (
        SchedulerClusterCombo(n_workers=1) as combo,
        tempfile.TemporaryDirectory() as directory,
        command("scaler_cluster", combo.get_address(), "-n", "1", "-wmi", "other", directory=Path(directory)),
        Client(combo.get_address()) as client,
    ):
        client.wait_for_workers(2, timeout=20)
        ids = {row.id: row.manager for row in client.cluster().workers}
        assert sorted(ids.values()) == ["local", "other"]
        found = client.run(process_id)
        assert found.keys() == ids.keys()
        assert len(set(found.values())) == 2
        local = next(each for each, manager in ids.items() if manager == "local")
        assert isinstance(client.run(divided, MISSING, 3, workers=[local])[local], ZeroDivisionError)
        late = client.run(process_id, path=MISSING, timeout=0.1)
        assert [type(each) for each in late.values()] == [TimeoutError] * 2
        with pytest.raises(UsageError, match="no worker 'missing' is connected"):
            client.run(process_id, workers=["missing"])


@pytest.mark.parametrize("graceful", short_form([False, True]))
def test_restarting_workers_loses_no_task(graceful: bool, tmp_path: Path) -> None:
    def number_of_runs(path: Path) -> int:
        with path.open("a") as file:
            file.write("x")
        wait_for_file(path.with_name("gate"))
        return len(path.read_text())

    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        running = client.submit(number_of_runs, tmp_path / "runs")
        wait_for_file(tmp_path / "runs")
        (before,) = [row.id for row in client.cluster().workers]
        assert client.restart_workers([before], graceful=graceful) == [before]
        if not graceful:
            until(lambda: (tmp_path / "runs").read_text() == "xx")
        (tmp_path / "gate").touch()
        assert running.result() == (1 if graceful else 2)
        until(lambda: [row.id for row in client.cluster().workers if row.id != before])
        assert client.submit(doubled, 3).result() == 6
        assert client.restart_workers([before]) == []
        with pytest.raises(UsageError, match="hexadecimal"):
            client.restart_workers(["none"])


def test_values_are_gathered_in_the_shape_of_their_futures(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address()) as client:
        one, two = client.submit(doubled, 1), client.submit(doubled, 2)
        assert client.gather([one, {"two": (two, "text")}, {one}, 7]) == [2, {"two": (4, "text")}, {2}, 7]
        failed = client.submit(divided, MISSING, 3)
        with pytest.raises(ZeroDivisionError, match="no 3"):
            client.gather([one, failed])
        good, bad = client.gather([one, failed], return_exceptions=True)
        assert good == 2
        assert isinstance(bad, ZeroDivisionError)
        endless = client.submit(wait_for_file, MISSING)
        assert endless.cancel()
        with pytest.raises(CancelledError):
            client.gather([endless])
        assert isinstance(client.gather([endless], return_exceptions=True)[0], CancelledError)


def test_futures_are_added_while_others_end(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with Client(cluster.get_address()) as client:
        late = client.submit(wait_for_file, tmp_path / "gate")
        ending = client.as_completed([late, client.submit(doubled, 1)])
        found = []
        for future in ending:
            if future is late:
                break
            found.append(future.result())
            if found[-1] < 16:
                ending.add(client.submit(doubled, found[-1]), future)  # a yielded future is not yielded again
            else:
                (tmp_path / "gate").touch()
        assert found == [2, 4, 8, 16]
        assert len(ending) == 0
        assert list(ending) == []
        with pytest.raises(UsageError, match="7 is not a future of a client"):
            ending.add(7)  # type: ignore[arg-type]
        assert client.submit(waits_inside, 3).result() == 6


def test_progress_bar_counts_finished_and_failed_tasks(
    cluster: SchedulerClusterCombo, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(cluster.get_address()) as client:
        client.progress([client.submit(doubled, 1), client.submit(divided, MISSING, 3)], name="both")
        written = capsys.readouterr().err
        assert "both: 100%" in written
        assert "2/2" in written
        assert "failed=1" in written
