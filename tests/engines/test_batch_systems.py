"""Whole clusters whose workers are PBS and LSF jobs, with fake commands and a queue in a directory."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.config.load import model_of
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, BackendError
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.backend import SlurmBackend
from tests.engines.burst_tasks import nap
from tests.engines.queue_stand_in import end_all, install, jobs_in
from tests.integration.settings_rig import Command, command
from tests.waiting import until

WAIT_SECONDS = 45.0
SYSTEMS = ("pbs", "lsf")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    commands = tmp_path / "commands"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(install(commands)), prepend=os.pathsep)
    yield commands
    end_all(commands)


def backend_of(system: str, directory: Path, **changed: object) -> SlurmBackend:
    values: dict[str, object] = {
        "scheduler_address": "tcp://127.0.0.1:1",
        "worker_manager_id": "m",
        "slurm_system": system,
    }
    values |= {"slurm_log_directory": str(directory), "heartbeat_interval_seconds": 0.01, "slurm_time_minutes": 90}
    return SlurmBackend(model_of(SlurmConfig, {**values, **changed}))


@pytest.mark.parametrize("system", SYSTEMS)
def test_work_scales_jobs_from_zero_and_back(system: str, tmp_path: Path, queue: Path) -> None:
    quick = ("-et", "target_v1", "-pc", "idle_seconds=0.5")
    with command("scaler_scheduler", "tcp://127.0.0.1:0", *quick, directory=tmp_path) as running:
        address = running.addresses()["scheduler"]
        place = ("--slurm-system", system, "--slurm-time-minutes", "90", "--slurm-log-directory", str(tmp_path))
        arguments = ("slurm", address, "-wmi", "batch", "-mtc", "4", "--slurm-cpus", "2", "-his", "0.25", *place)
        with command("scaler_worker_manager", *arguments, directory=tmp_path) as batch, Client(address) as client:
            assert client.map(nap, range(40), [0.02] * 40) == list(range(40))
            until(lambda: "ended after" in batch.output(), WAIT_SECONDS)
    jobs = jobs_in(queue)
    assert 1 <= len(jobs) <= 2
    # Each unit finds its own id, by which the manager identifies it.
    logs = "".join(path.read_text() for path in tmp_path.iterdir() if path.suffix in (".OU", ".out"))
    assert all(f"unit={unit_id} " in logs for unit_id in jobs)


@pytest.mark.parametrize("system", SYSTEMS)
def test_queued_job_shows_its_reason_and_running_job_its_remaining_time(
    system: str, tmp_path: Path, queue: Path
) -> None:
    assert queue.is_dir()
    backend = backend_of(system, tmp_path, slurm_options=("held",))
    [waits] = backend.start(1)
    [unit] = until(lambda: [unit for unit in backend.list() if unit.reason])
    assert (unit.unit_id, unit.state) == (waits, UnitState.WAITING)
    assert unit.reason == {"pbs": "queued: Not Running: No available resources"}.get(
        system, "queued: Job slot limit reached"
    )
    backend.stop([waits])
    until(lambda: [unit.state for unit in backend.list()] == [UnitState.STOPPED])
    backend.close()
    other = backend_of(system, tmp_path, slurm_setup="exec sleep 60")
    [runs] = other.start(1)
    [unit] = until(lambda: [unit for unit in other.list() if unit.state is UnitState.RUNNING])
    assert unit.unit_id == runs
    assert 80 * 60 < unit.remaining_seconds < 90 * 60 + 1
    other.stop([runs])
    until(lambda: [unit.state for unit in other.list()][-1:] == [UnitState.STOPPED])
    other.close()


@pytest.mark.parametrize(("system", "text"), [("pbs", "qsub: unknown queue"), ("lsf", "bsub: unknown queue")])
def test_refused_submission_explains_why(system: str, text: str, tmp_path: Path, queue: Path) -> None:
    assert queue.is_dir()
    backend = backend_of(system, tmp_path, slurm_partition="nope")
    with pytest.raises(BackendError, match=text):
        backend.start(2)
    assert backend.list() == []
    backend.close()


@pytest.mark.parametrize("system", SYSTEMS)
def test_jobs_request_the_configured_resources(system: str, tmp_path: Path, queue: Path) -> None:
    backend = backend_of(
        system,
        tmp_path,
        slurm_partition="long",
        slurm_account="our-project",
        slurm_constraint="fast",
        slurm_cpus=4,
        slurm_memory="16G",
        slurm_gpus=2,
        slurm_options=("held",),
    )
    [unit_id] = backend.start(1)
    asked = " ".join(jobs_in(queue)[unit_id]["arguments"])
    expected = {
        "pbs": "-l select=1:ncpus=4:mem=16384mb:ngpus=2:fast -l walltime=01:30:00 -q long -A our-project held",
        "lsf": "-q long -P our-project -M 16384MB -gpu num=2 -R span[hosts=1] rusage[mem=16384MB] select[fast] held",
    }[system]
    assert asked.endswith(expected)
    backend.stop([unit_id])
    backend.close()


def test_unanswered_stop_is_a_single_command(tmp_path: Path, queue: Path) -> None:
    login = tmp_path / "login"
    login.write_text(
        f'#!/bin/sh\necho "$1" >>{tmp_path}/lines\n'
        'case "$1" in *qdel*) echo "qdel: cannot connect to server" >&2; exit 1;; esac\nexec sh -c "$1"\n'
    )
    login.chmod(0o755)
    backend = backend_of("pbs", tmp_path, slurm_options=("held",), slurm_prefix=str(login))
    started = backend.start(3)
    with pytest.raises(BackendError, match="cannot connect to server"):
        backend.stop(started)
    lines = (tmp_path / "lines").read_text().splitlines()
    assert [line.split(" sh ")[-1] for line in lines if "qdel" in line] == [f"qdel {' '.join(started)}"]
    assert queue.is_dir()
    # The job was accepted nevertheless, so nothing has failed.
    subprocess.run(["qdel", *started], check=True)
    units = until(lambda: [unit for unit in backend.list() if unit.state in ENDED])
    assert {unit.state for unit in units} == {UnitState.STOPPED}


def test_kills_an_unresponsive_command_and_its_children(
    tmp_path: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler.worker_manager.slurm.backend.COMMAND_SECONDS", 0.5)
    login = tmp_path / "login"
    seconds = f"1{os.getpid()}"  # identifies its process
    login.write_text(f"#!/bin/sh\necho 'Verification code:' >&2\necho Welcome\nsleep {seconds}\n")
    login.chmod(0o755)
    backend = backend_of("pbs", tmp_path, slurm_prefix=str(login))
    text = "did not answer within 0.5 s, and printed: Verification code:; Welcome"
    with pytest.raises(BackendError, match=text):
        backend.list()
    assert queue.is_dir()
    until(lambda: ["sleep", seconds] not in [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])])


def test_manager_stopped_before_its_batch_system_answers_leaves_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, pid_file = tmp_path / "commands", tmp_path / "pid"
    commands.mkdir()
    path = commands / "squeue"
    # The sleeping process is a child of the process that the manager starts.
    path.write_text(f"#!/bin/sh\nsleep 600 & echo $! >{pid_file}.new && mv {pid_file}.new {pid_file}; wait\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    running = Command(
        "scaler_worker_manager", ("slurm", "tcp://127.0.0.1:1", "-wmi", "m", "--slurm-time-minutes", "1"), {}, tmp_path
    )
    try:
        until(pid_file.exists, WAIT_SECONDS)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(WAIT_SECONDS) == 0
        text = running.output() + running.errors()
        assert "exiting before the backend answered: units of an earlier manager remain" in text
        assert "did not answer" not in text
        assert not psutil.pid_exists(int(pid_file.read_text()))
    finally:
        running.close()


def test_manager_in_a_removed_directory_starts_jobs_in_the_log_directory(
    tmp_path: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    jobs = tmp_path / "jobs"
    backend = backend_of("pbs", jobs, slurm_setup=f"pwd >{tmp_path}/where; exec sleep 60")
    started = backend.start(1)
    until(lambda: (tmp_path / "where").exists() and (tmp_path / "where").read_text() == f"{jobs}\n")
    backend.stop(started)
    backend.close()
    assert jobs_in(queue)
