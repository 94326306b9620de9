"""Tasks that harm their worker: the task fails, all other tasks go on, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ProcessorDiedError, ScalerError

RESULT_SECONDS = 20.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with SchedulerClusterCombo(n_workers=2) as cluster:
        yield cluster.get_address()


def stop_its_parent() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)


def close_everything() -> None:
    os.closerange(3, 256)


def write_everywhere() -> None:
    for descriptor in range(3, 31):
        try:
            os.set_blocking(descriptor, False)
            for _ in range(20):
                os.write(descriptor, b"\xff" * 5000)
        except OSError:
            continue


def ignore_all_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_IGN)


def use_up_its_descriptors() -> None:
    import resource  # noqa: PLC0415 (a task's own)

    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))


def kill_its_group() -> None:
    os.killpg(0, signal.SIGTERM)
    time.sleep(RESULT_SECONDS)


def raise_the_worst() -> None:
    class Worst(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        def __reduce__(self) -> str:
            raise RuntimeError("no pickle")

    raise Worst


@pytest.mark.parametrize(
    "harm",
    [
        stop_its_parent,
        close_everything,
        write_everywhere,
        ignore_all_signals,
        use_up_its_descriptors,
        kill_its_group,
        raise_the_worst,
        sys.exit,
    ],
)
def test_after_a_task_that_means_harm_the_next_ones_run(address: str, harm: Callable[[], None]) -> None:
    with Client(address=address) as client:
        for _ in range(3):
            error = client.submit_verbose(harm, (), {}, retries=0).exception(RESULT_SECONDS)
            assert error is None or isinstance(error, ScalerError | SystemExit)
            # And one that must be replaced, by the processes that the task has left alive.
            with pytest.raises(ProcessorDiedError):
                client.submit_verbose(os._exit, (1,), {}, retries=0).result(RESULT_SECONDS)
            futures = [client.submit(abs, -number) for number in range(20)]
            assert [future.result(RESULT_SECONDS) for future in futures] == list(range(20))


def test_many_tasks_in_a_row_that_kill_their_process_do_not_take_the_workers_from_others(address: str) -> None:
    with Client(address=address) as bad, Client(address=address) as good:
        for _ in range(12):
            with pytest.raises(ProcessorDiedError, match="exit code 3"):
                bad.submit_verbose(os._exit, (3,), {}, retries=0).result(RESULT_SECONDS)
        assert good.submit(abs, -1).result(RESULT_SECONDS) == 1


@pytest.mark.parametrize("victims", [("agent",), ("fork server",), ("agent", "fork server")])
def test_what_a_task_has_started_ends_with_its_killed_worker(victims: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / "pids"

    def start_children() -> None:
        within = subprocess.Popen(["sleep", "600"])
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        part = place.with_suffix(".part")
        part.write_text(f"{os.getpid()} {within.pid} {daemon.pid}")
        part.rename(place)
        time.sleep(600)

    with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
        future = client.submit_verbose(start_children, (), {}, retries=0)
        until(place.exists)
        processor, *started = (psutil.Process(int(pid)) for pid in place.read_text().split())
        fork_server = processor.parent()
        assert fork_server is not None
        agent = fork_server.parent()
        assert agent is not None
        by_name = {"agent": agent, "fork server": fork_server}
        for victim in victims:
            by_name[victim].kill()
        _, alive = psutil.wait_procs([processor, *started], timeout=RESULT_SECONDS)
        assert alive == []
        assert isinstance(future.exception(RESULT_SECONDS), ScalerError)
        assert client.submit(abs, -1).result(RESULT_SECONDS) == 1


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + RESULT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nothing tells when another process has written a file
