"""Gangs on a cluster: results, failures, lost workers, and views of clients."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import scaler
from scaler import AsyncClient, Client, SchedulerClusterCombo, current_gang
from scaler.errors import TaskTimeoutError, UsageError, WorkerLostError
from tests.waiting import until, wait_for_file


@pytest.fixture
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as connected:
        yield connected


@pytest.fixture
def own() -> Iterator[Client]:
    """A client of a cluster with two workers, which may be killed."""
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        more = ["baremetal_native", combo.get_address(), "-wmi", "more", "--mode", "fixed", "-n", "1"]
        manager = subprocess.Popen([sys.executable, "-m", "scaler.cli", "scaler_worker_manager", *more])
        try:
            client.wait_for_workers(2, 20)
            yield client
        finally:
            manager.terminate()
            manager.wait()


def who(argument: str = "") -> tuple[int, int, int, str]:
    gang = current_gang()
    return gang.rank, gang.size, len(gang.hosts), argument


def add_up(value: int) -> int:
    """Sum a value over all members, through a connection to the first one."""
    gang = current_gang()
    address = gang.hosts[0], gang.port
    if gang.rank == 0:
        with socket.create_server(address) as server:
            for _ in range(gang.size - 1):
                with server.accept()[0] as other:
                    value += int(other.makefile().readline())
        return value
    line = b"%d\n" % (value + gang.rank)
    with until(lambda: connected(address)) as connection:
        connection.sendall(line)
    return 0


def connected(address: tuple[str, int]) -> socket.socket | None:
    try:
        return socket.create_connection(address)
    except ConnectionRefusedError:
        return None


def mark(folder: str) -> None:
    """Leave this member's agent and rank in a file, and run until the test ends the member."""
    Path(folder, f"{current_gang().rank}-{os.getpid()}").write_text(str(agent()))
    wait_for_file(Path(folder, "go"))


def agent() -> int:
    """The pid of this task's worker agent: the parent of the fork server."""
    return parent(os.getppid())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def marks(folder: Path, count: int) -> list[Path]:
    return sorted(until(lambda: found if len(found := list(folder.glob("[0-9]-*"))) == count else None))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def until_dead(pid: int) -> None:
    until(lambda: not is_alive(pid))


def rank_and_pid() -> tuple[int, int]:
    return current_gang().rank, os.getpid()


def test_result_is_the_list_of_the_members_results_by_rank(client: Client) -> None:
    assert client.gang(who, 2, "x").result(20) == [(0, 2, 2, "x"), (1, 2, 2, "x")]
    (first, second) = client.gang(rank_and_pid, 2).result(20)
    assert (first[0], second[0]) == (0, 1)
    assert first[1] != second[1]


def test_members_reach_each_other_through_the_port(client: Client) -> None:
    assert client.gang(add_up, 2, 20).result(20) == [41, 0]


def test_a_single_member_is_a_gang(client: Client) -> None:
    assert client.gang(who, 1).result(20) == [(0, 1, 1, "")]


def test_there_is_no_current_gang_outside_a_gang(client: Client) -> None:
    with pytest.raises(UsageError, match="is not inside one"):
        current_gang()
    with pytest.raises(UsageError, match="is not inside one"):
        client.submit(who).result(20)


def divide(folder: str) -> float:
    if current_gang().rank == 1:
        return 1 / 0
    Path(folder, str(os.getpid())).touch()
    wait_for_file(Path(folder, "go"))
    return 0


def test_an_exception_of_one_member_stops_the_other_and_is_the_gangs_exception(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        client.gang(divide, 2, str(tmp_path)).result(20)
    assert raised.value.__notes__ == ["rank 1 of a gang of 2 failed"]
    for path in tmp_path.iterdir():
        until_dead(int(path.name))


def test_cancel_stops_all_members(client: Client, tmp_path: Path) -> None:
    gang = client.gang(mark, 2, str(tmp_path))
    pids = [int(path.name.partition("-")[2]) for path in marks(tmp_path, 2)]
    until(gang.running)
    assert gang.cancel()
    with pytest.raises(CancelledError):
        gang.result()
    for pid in pids:
        until_dead(pid)


def test_a_time_limit_applies_to_each_member(client: Client, tmp_path: Path) -> None:
    with pytest.raises(TaskTimeoutError):
        client.gang(mark, 2, str(tmp_path), timeout_seconds=0.3).result(20)


def nest() -> int:
    found: int = Client().submit(pow, 2, current_gang().rank).result(20)
    return found


def test_each_member_has_its_own_client(client: Client) -> None:
    assert client.gang(nest, 2).result(20) == [1, 2]


def outer() -> list[int]:
    found: list[int] = Client().gang(inner, 2).result(20)
    return found


def inner() -> int:
    return current_gang().rank


def test_a_task_can_start_a_gang_and_lends_its_slot_to_a_member(client: Client) -> None:
    assert client.submit(outer).result(20) == [0, 1]


def test_a_client_without_processes_has_no_gangs() -> None:
    with Client(processes=False) as debugging, pytest.raises(UsageError, match="gangs need workers"):
        debugging.gang(inner, 2).result(20)


def test_arguments_may_be_futures(client: Client) -> None:
    argument = client.submit(str.upper, "x")
    assert [found[3] for found in client.gang(who, 2, argument).result(20)] == ["X", "X"]
    with pytest.raises(ZeroDivisionError):
        client.gang(who, 2, client.submit(divmod, 1, 0)).result(20)


def test_a_gang_that_has_ended_is_an_argument_and_one_that_has_not_is_refused(client: Client, tmp_path: Path) -> None:
    gang = client.gang(mark, 2, str(tmp_path))
    with pytest.raises(UsageError, match=r"pass its result\(\) instead"):
        client.submit(len, gang)
    (tmp_path / "go").touch()
    gang.result(20)
    assert client.submit(len, gang).result(20) == 2


def test_views_of_clients_and_asyncio_clients_have_gangs(client: Client, cluster: SchedulerClusterCombo) -> None:
    assert len(client.options(priority=3, name="named").gang(who, 2).result(20)) == 2

    async def gather() -> list[object]:
        async with AsyncClient(cluster.get_address()) as connected:
            found: list[object] = await connected.gang(who, 2, "y")
            return found

    assert asyncio.run(gather()) == [(0, 2, 2, "y"), (1, 2, 2, "y")]


def test_a_gang_larger_than_the_cluster_explains_itself(client: Client) -> None:
    gang = client.gang(who, 9)
    until(lambda: "its gang of 9 is too large for the cluster" in gang.explain())
    assert "will run next" not in gang.explain()
    assert gang.cancel()


def test_only_one_member_fits_a_host(client: Client) -> None:
    gang = client.gang(who, 2, per_host=1)
    until(lambda: "whose workers offer 1 slot with at most 1 on a host" in gang.explain())
    assert gang.cancel()


def test_a_host_may_have_more_members_than_the_gang_has(client: Client) -> None:
    assert client.gang(who, 1, per_host=10**9).result(20) == client.gang(who, 1).result(20)


@pytest.mark.parametrize(
    ("n", "options", "said"),
    [
        (0, {}, "n is 0"),
        (2, {"per_host": 0}, "per_host is 0"),
        (2, {"retry_on": OSError}, "omit retry_on"),
        (2, {"retry_delay": 1}, "omit retry_on and retry_delay"),
        (2, {"preemptible": True}, "omit preemptible"),
        (2, {"memory": "x"}, "memory is 'x'"),
    ],
)
def test_bad_arguments_are_refused(client: Client, n: int, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        client.gang(who, n, **options)  # type: ignore[arg-type]


def test_wrong_arguments_of_the_function_are_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="does not take these arguments"):
        client.gang(who, 2, 1, 2)


def test_the_whole_gang_starts_again_after_the_loss_of_one_worker(own: Client, tmp_path: Path) -> None:
    gang = own.gang(mark, 2, str(tmp_path), retries=1)
    first = marks(tmp_path, 2)
    assert first[0].read_text() != first[1].read_text(), "two workers"
    os.kill(int(first[0].read_text()), signal.SIGKILL)
    again = [path for path in marks(tmp_path, 4) if path not in first]
    assert sorted(path.name[0] for path in again) == ["0", "1"]
    assert not any(is_alive(int(path.name.partition("-")[2])) for path in first)
    (tmp_path / "go").touch()
    assert gang.result(20) == [None, None]


def test_two_workers_lost_at_once_use_one_retry(own: Client, tmp_path: Path) -> None:
    gang = own.gang(mark, 2, str(tmp_path), retries=1)
    first = marks(tmp_path, 2)
    for path in first:
        os.kill(int(path.read_text()), signal.SIGKILL)
    assert len(marks(tmp_path, 4)) == 4
    (tmp_path / "go").touch()
    assert gang.result(20) == [None, None]


def test_a_gang_without_retries_fails_with_its_lost_member(own: Client, tmp_path: Path) -> None:
    gang = own.gang(mark, 2, str(tmp_path), retries=0)
    first = marks(tmp_path, 2)
    os.kill(int(first[1].read_text()), signal.SIGKILL)
    with pytest.raises(WorkerLostError) as raised:
        gang.result(20)
    assert "rank 1 of a gang of 2 failed" in raised.value.__notes__
    until(lambda: not any(is_alive(int(path.name.partition("-")[2])) for path in first))


def test_scaler_exports_the_function() -> None:
    assert scaler.current_gang is current_gang
