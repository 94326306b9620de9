"""Tasks that harm their worker: the task fails, all other tasks continue, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ProcessorDiedError, ScalerError
from tests.integration.worker_rig import Rig, played
from tests.waiting import until, wait_for_file

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


def fork_and_go_on_twice() -> None:
    os.fork()


def kill_its_group() -> None:
    os.killpg(0, signal.SIGTERM)
    wait_for_file("/nowhere")


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
        fork_and_go_on_twice,
        kill_its_group,
        raise_the_worst,
        sys.exit,
    ],
)
def test_tasks_run_after_a_malicious_one(address: str, harm: Callable[[], None]) -> None:
    with Client(address=address) as client:
        for _ in range(2):
            error = client.submit_verbose(harm, (), {}, retries=0).exception(RESULT_SECONDS)
            assert error is None or isinstance(error, ScalerError | SystemExit) or type(error).__name__ == "Worst"
            # Also replaces a processor if processes left by the task require that.
            with pytest.raises(ProcessorDiedError):
                client.submit_verbose(os._exit, (1,), {}, retries=0).result(RESULT_SECONDS)
            futures = [client.submit(abs, -number) for number in range(20)]
            assert [future.result(RESULT_SECONDS) for future in futures] == list(range(20))


@pytest.mark.parametrize("victims", [pytest.param(("agent",), marks=pytest.mark.full), ("agent", "fork server")])
def test_child_processes_of_a_task_end_with_its_killed_worker(
    address: str, victims: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "pids"

    def start_children() -> None:
        within = subprocess.Popen(["sleep", "600"])
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        part = place.with_suffix(".part")
        part.write_text(f"{os.getpid()} {within.pid} {daemon.pid}")
        part.rename(place)
        within.wait()

    with Client(address=address) as client:
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


def end_in_child(how: str) -> int:
    pid = os.fork()
    if not pid:
        if how == "raise":
            raise ValueError("in the child")
        if how == "exit":
            sys.exit(7)
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forked_child_of_a_task_exits_like_a_program_unnoticed(address: str) -> None:
    with Client(address=address) as client:
        for how, code in (("return", 0), ("raise", 1), ("exit", 7)):
            assert client.submit_verbose(end_in_child, (how,), {}, retries=0).result(RESULT_SECONDS) == code
        assert client.map(abs, range(-50, 0)) == list(range(50, 0, -1))


def lower_a_limit(name: str, hard: bool) -> int:
    import resource  # noqa: PLC0415 (a task's own)

    which = getattr(resource, name)
    resource.setrlimit(which, (1, 1 if hard else resource.getrlimit(which)[1]))
    return os.getpid()


def use_limits() -> int:
    """Need descriptors, memory, CPU time, and a file."""
    import tempfile  # noqa: PLC0415 (a task's own)

    with tempfile.TemporaryFile() as file:
        file.write(bytes(20_000_000))
    return os.getpid()


@played()
async def test_lowered_resource_limit_ends_with_its_processor(rig: Rig) -> None:
    for name in ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_CPU"):
        for hard in (False, True):
            lowered, after = rig.submit(lower_a_limit, (name, hard))[0], rig.submit(use_limits, ())[0]
            pid = await rig.value(lowered)
            assert await rig.value(after) != pid


def leave_a_daemon_behind(place: Path) -> None:
    """Start a process outside the worker's groups, without its environment, and not its child."""
    sleeper = f"exec env -i setsid sh -c 'echo $$ > {place}.part; mv {place}.part {place}; exec sleep 600' &"
    subprocess.run(["sh", "-c", sleeper], check=True)
    wait_for_file(place)  # until then, it is in the processor's group and would be killed with it


def test_daemon_left_by_a_task_lives_until_the_worker_exits(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    with (
        SchedulerClusterCombo(n_workers=1, max_tasks_per_processor=1) as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        client.submit(leave_a_daemon_behind, place).result(RESULT_SECONDS)
        until(place.exists)
        daemon = psutil.Process(int(place.read_text()))
        assert len({client.submit(os.getpid).result(RESULT_SECONDS) for _ in range(3)}) == 3
        assert daemon.is_running()
    until(lambda: not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE)
