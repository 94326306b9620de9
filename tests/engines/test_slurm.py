"""Whole clusters whose workers are jobs of a real Slurm with two nodes on this machine."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture
from scaler.cluster.supervisor import ReservedPorts
from scaler.config.load import model_of
from scaler.protocol.messages import UnitState
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from scaler.worker_manager.backend import BackendError
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.backend import SlurmBackend
from tests.engines.burst_tasks import nap, wait_at_gate
from tests.engines.slurm_rig import SlurmCluster, processes_of, slurm_cluster
from tests.integration.settings_rig import Command, command
from tests.waiting import until, within

WAIT_SECONDS = 45.0
PAUSE_SECONDS = 0.1
"""Interval between Slurm commands: each is a process, and a request to the controller."""
AT_THE_LIMIT = "at_the_limit"
"""The comment of jobs that run during all tests."""
QUICK = ("-et", "target_v1", "-pc", "idle_seconds=1")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def address(slurm: SlurmCluster) -> Iterator[str]:
    """A scheduler shared by the tests, each of which has its own manager."""
    with command("scaler_scheduler", "tcp://127.0.0.1:0", *QUICK, directory=slurm.directory) as running:
        yield running.addresses()["scheduler"]


@contextmanager
def manager(directory: Path, address: str, slots: int, *flags: str, **others: Any) -> Iterator[Command]:
    with uncertain_manager(directory, address, slots, *flags, **others) as running:
        running.addresses()
        yield running
        assert running.stop() == 0, running.errors()


@contextmanager
def uncertain_manager(
    directory: Path,
    address: str,
    slots: int,
    *flags: str,
    minutes: int = 10,
    name: str = "batch",
    heartbeat_seconds: float = 0.25,
    environment: dict[str, str] | None = None,
    before: Sequence[str] = (),
) -> Iterator[Command]:
    """Start a manager that may end in any way."""
    place = ("--slurm-log-directory", str(directory / "jobs"), "--slurm-time-minutes", str(minutes))
    size = ("-mtc", str(slots), "-his", str(heartbeat_seconds))
    arguments = ("slurm", address, "-wmi", name, *size, *place, *flags)
    started = Command("scaler_worker_manager", arguments, environment or {}, directory, before=before)
    try:
        yield started
    finally:
        started.close()


def slurm_config(directory: Path, **changed: object) -> SlurmConfig:
    values = {"scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": directory.name, "max_task_concurrency": 8}
    values |= {"slurm_log_directory": str(directory), "slurm_time_minutes": 10, "heartbeat_interval_seconds": 0.1}
    return model_of(SlurmConfig, {**values, **changed})


def eventually(condition: Callable[[], Any]) -> Any:
    """Query Slurm until a condition holds, and return the answer."""
    return until(condition, WAIT_SECONDS, PAUSE_SECONDS)


def values(futures: Sequence[ScalerFuture]) -> list[object]:
    return [future.result(WAIT_SECONDS) for future in futures]


def once_only(client: Client, gate: Path, count: int) -> list[ScalerFuture]:
    """Submit tasks that run until the gate exists, and have no second attempt if they die."""
    return [client.submit_verbose(wait_at_gate, (number, str(gate)), retries=0) for number in range(count)]


@pytest.fixture(scope="module")
def at_the_limit(slurm: SlurmCluster) -> Iterator[tuple[list[ScalerFuture], str]]:
    """Endless tasks in jobs with the shortest possible time limit, on the second node.

    A job's worker is drained after half a minute, while the other tests run.
    """
    directory = slurm.directory
    options = f"--slurm-options=--nodelist=n2,--comment={AT_THE_LIMIT}"
    with command("scaler_scheduler", "tcp://127.0.0.1:0", *QUICK, directory=directory) as running:
        address = running.addresses()["scheduler"]
        with (
            manager(directory, address, 1, options, minutes=1, heartbeat_seconds=1) as batch,
            Client(address) as client,
        ):
            futures = [client.submit_verbose(nap, (number, 0.25), retries=0) for number in range(400)]
            yield futures, eventually(lambda: slurm.running(AT_THE_LIMIT))[0]
            assert "time limit" not in batch.output()
            client.clear()


@pytest.fixture(autouse=True)
def no_jobs_of_earlier_tests(slurm: SlurmCluster) -> None:
    eventually(lambda: not slurm.jobs())


# -- from zero up and down to zero


def test_work_scales_jobs_from_zero_and_back_with_a_secret_credential(
    tmp_path: Path, slurm: SlurmCluster, at_the_limit: object
) -> None:
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    files = {role: tmp_path / f"{role}.credentials" for role in ("manager", "client")}
    for role, file in files.items():
        write_private(file, keys.add(role, role).to_text(), replace=True)
    login = tmp_path / "login"
    login.write_text(f'#!/bin/sh\n[ $# = 1 ] || exit 1\necho "$1" >>{tmp_path}/commands\nexec sh -c "$1"\n')
    login.chmod(0o755)
    ports = ReservedPorts(3)
    flags = ("--slurm-cpus", "2", "--slurm-prefix", str(login), "--credentials", str(files["manager"]))
    far, storage = (ports.address(index).replace("127.0.0.1", "127.0.0.2") for index in range(2))
    secure = ("--credentials", str(keys.path), "--advertised-object-storage-address", storage)
    everywhere = ports.address().replace("127.0.0.1", "0.0.0.0")
    with command("scaler_scheduler", everywhere, *QUICK, *secure, directory=tmp_path) as running:
        running.addresses()
        with manager(tmp_path, far, 4, *flags), Client(far, credentials=str(files["client"])) as client:
            assert not slurm.jobs()
            futures = once_only(client, tmp_path / "gate", 4)
            started = eventually(lambda: len(own := set(slurm.running())) == 2 and own)
            arrays = {unit_id.partition("_")[0] for unit_id in started}
            assert len(arrays) == 1, "one submission for all units of a request"
            [kept] = (tmp_path / "jobs").glob("*.credential")
            assert kept.stat().st_mode & 0o777 == 0o600
            secrets = [line for line in kept.read_text().splitlines() if len(line) > 30]
            [unit_id, _] = started
            seen = slurm.run("scontrol", "show", "job", "-dd") + (tmp_path / "commands").read_text()
            seen += slurm.run("scontrol", "write", "batch_script", arrays.pop(), "-")
            for process in until(lambda: processes_of(unit_id)):
                seen += str(process.environ()) + str(process.cmdline())
            assert unit_id in seen
            assert secrets
            assert not [secret for secret in secrets if secret.split()[-1].strip('"') in seen]
            (tmp_path / "gate").touch()
            assert values(futures) == list(range(4))
            eventually(lambda: not set(slurm.jobs()) & started)
        assert not list((tmp_path / "jobs").glob("*.credential"))
    ports.release()


# -- jobs that are taken away


def test_cancelled_job_ends_its_tasks_in_order_and_reports_it(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate = tmp_path / "gate"
    with manager(tmp_path, address, 2, "--slurm-cpus", "2") as batch, Client(address) as client:
        futures = once_only(client, gate, 2)
        [unit_id] = eventually(slurm.running)
        until(lambda: len([f for f in futures if f.running()]) == 2, WAIT_SECONDS)
        # Sends SIGTERM to all processes of the job, and SIGKILL after KillWait.
        slurm.run("scancel", unit_id)
        eventually(lambda: slurm.jobs().get(unit_id) == "COMPLETING")
        gate.touch()
        assert values(futures) == [0, 1]
        text = f"unit {unit_id} ended"
        assert within(WAIT_SECONDS, lambda: text in batch.output())
        assert "cancelled by a user or an administrator (n" in batch.output()


def test_tasks_of_a_lost_node_run_on_the_other_one(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate = tmp_path / "gate"
    with slurm.node_again("n1"), manager(tmp_path, address, 3, "--slurm-cpus", "3") as batch, Client(address) as client:
        futures = [client.submit(wait_at_gate, number, str(gate)) for number in range(3)]
        [unit_id] = eventually(lambda: slurm.running_on("n1"))
        until(lambda: all(future.running() for future in futures), WAIT_SECONDS)
        slurm.lose("n1")
        gate.touch()
        assert values(futures) == [0, 1, 2]
        assert within(WAIT_SECONDS, lambda: f"unit {unit_id} ended" in batch.output())
        assert "its node failed (n1)" in batch.output()
        assert slurm.jobs("NODE_FAIL")[unit_id] == "NODE_FAIL", "Slurm does not requeue the job"


# -- gangs


def place_at_gate(gate: str) -> tuple[str, ...]:
    wait_at_gate(0, gate)
    return tuple(os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_PROCID", "SLURMD_NODENAME", "SCALER_UNIT_ID"))


def test_gang_starts_in_one_job_with_a_worker_on_each_node(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate = tmp_path / "gate"
    with manager(tmp_path, address, 2) as batch, Client(address) as client:
        gang = client.gang(place_at_gate, 2, str(gate))
        [job] = eventually(slurm.running)
        gate.touch()
        places = gang.result(WAIT_SECONDS)
        assert sorted(places, key=lambda place: place[1]) == [
            (job, "0", "n1", f"{job}.0"),
            (job, "1", "n2", f"{job}.1"),
        ]
        eventually(lambda: not slurm.jobs())
        assert f"started {job}.0, {job}.1" in batch.output()
        outputs = {path.name for path in (tmp_path / "jobs").glob(f"slurm-{job}.*.out")}
        assert outputs == {f"slurm-{job}.{rank}.out" for rank in range(2)}


def test_loss_of_a_worker_ends_its_job_and_another_one_runs_the_gang(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate = tmp_path / "gate"
    with manager(tmp_path, address, 2) as batch, Client(address) as client:
        gang = client.gang(place_at_gate, 2, str(gate))
        [job] = eventually(slurm.running)
        until(gang.running, WAIT_SECONDS)
        until(lambda: processes_of(f"{job}.1"))[0].kill()
        eventually(lambda: job not in slurm.running())
        gate.touch()
        places = gang.result(WAIT_SECONDS)
        assert {place[0] for place in places}.isdisjoint({job})
        assert f"unit {job}.0 ended" in batch.output()


def test_gang_larger_than_the_number_of_nodes_runs_in_jobs_of_its_own(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with manager(tmp_path, address, 3) as batch, Client(address) as client:
        places = client.gang(place_at_gate, 3, str(gate)).result(WAIT_SECONDS)
        assert len({place[3] for place in places}) == 3
        assert "because a job with 3 nodes was refused" in batch.output()


def test_units_of_one_job_are_adopted_and_cancelled_with_the_last_of_them(slurm: SlurmCluster, tmp_path: Path) -> None:
    first, second = (SlurmBackend(slurm_config(tmp_path)) for _ in range(2))
    first.together = 2
    units = first.start(2)
    [job] = eventually(slurm.running)
    second.list()
    second.stop(units[:1])
    states = {unit.unit_id: unit.state for unit in second.list()}
    assert states == {f"{job}.0": UnitState.STOPPING, f"{job}.1": UnitState.RUNNING}
    assert slurm.running() == [job], "the job's second unit may have work"
    second.stop(units[1:])
    eventually(lambda: not slurm.jobs())
    for backend in (first, second):
        backend.disconnect()


# -- managers and controllers that come and go


def test_restarted_manager_adopts_its_jobs(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate = tmp_path / "gate"
    with Client(address) as client:
        with uncertain_manager(tmp_path, address, 2) as first:
            futures = once_only(client, gate, 2)
            fleet = eventually(lambda: len(own := set(slurm.running())) == 2 and own)
            until(futures[0].running, WAIT_SECONDS)
            first.process.kill()
            first.process.wait(WAIT_SECONDS)
        with manager(tmp_path, address, 2):
            gate.touch()
            assert values(futures) == [0, 1]
            assert set(slurm.jobs()) <= fleet, "the manager starts no more"


def test_empty_job_lists_and_shell_messages_change_nothing(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    gate, empty, calls = (tmp_path / name for name in ("gate", "empty", "calls"))
    commands = tmp_path / "commands"
    commands.mkdir()
    squeue = commands / "squeue"
    squeue.write_text(f'#!/bin/sh\necho >>{calls}\n[ -e {empty} ] || exec {shutil.which("squeue")} "$@"\n')
    login = tmp_path / "login"
    login.write_text(
        f'#!/bin/sh\necho Welcome\necho 42\nPATH={commands}:$PATH sh -c "$1"\ncode=$?\necho Bye\nexit $code\n'
    )
    for path in (squeue, login):
        path.chmod(0o755)
    with manager(tmp_path, address, 1, "--slurm-prefix", str(login)) as batch, Client(address) as client:
        futures = once_only(client, gate, 2)
        until(futures[0].running, WAIT_SECONDS)
        started = set(slurm.jobs())
        empty.touch()
        lists = len(calls.read_text())
        until(lambda: len(calls.read_text()) > lists + 2, WAIT_SECONDS)
        assert set(slurm.jobs()) == started, "the manager starts no more"
        empty.unlink()
        gate.touch()
        assert values(futures) == [0, 1]
        assert "no longer knows it" not in batch.output()


# -- surroundings


def surroundings() -> tuple[dict[str, str], str, int, str]:
    """Return environment, directory, and open-file limit of a task, and the output of an srun in it."""
    ran = subprocess.run(["srun", "--overlap", "-n1", "printenv", "HOME"], capture_output=True, text=True, check=False)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return dict(os.environ), str(Path.cwd()), limit, ran.stdout + ran.stderr


def test_jobs_do_not_inherit_the_managers_allocation_and_srun_works(
    tmp_path: Path, slurm: SlurmCluster, address: str, at_the_limit: object
) -> None:
    leaks = {
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SLURM_MEM_PER_CPU": "17",
        "SLURM_MEM_PER_NODE": "17",
        "SLURM_JOB_ID": "99999",
    }
    leaks |= {"SLURM_NTASKS": "3", "SBATCH_TIMELIMIT": "3", "SLURM_TIME_FORMAT": "relative", "MY_SECRET": "s"}
    limits = ("sh", "-c", 'ulimit -n 300; exec "$@"', "sh")
    with (
        manager(tmp_path, address, 1, "--slurm-memory=100M", environment=leaks, before=limits),
        Client(address) as client,
    ):
        found, directory, limit, printed = client.submit(surroundings).result(WAIT_SECONDS)
    assert {name: value for name, value in found.items() if leaks.get(name) == value} == {}
    assert found["SLURM_JOB_ID"] == found["SCALER_UNIT_ID"]
    assert found["HOME"] == str(Path.home())
    assert found["PATH"]
    assert directory == str(Path.cwd()), "where the manager was started, as workers of all managers"
    assert limit > 300
    assert printed == f"{found['HOME']}\n"


# -- rejections by Slurm


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("slurm_constraint", "nope", "Invalid feature specification"),
        ("slurm_gpus", 2, "node configuration is not available"),
        ("slurm_cpus", 900, "More processors requested than permitted"),
        ("slurm_memory", "900G", "node configuration is not available"),
        ("slurm_time_minutes", 600, "Requested time limit is invalid"),
        ("slurm_options", ("--no-such",), "unrecognized option '--no-such'"),
        ("slurm_prefix", "no-such-login", "cannot run no-such-login"),
        ("slurm_system", "pbs", "cannot run qsub: not found"),
    ],
)
def test_settings_that_slurm_rejects_are_rejected_with_its_reason(
    slurm: SlurmCluster, tmp_path: Path, key: str, value: object, text: str
) -> None:
    backend = SlurmBackend(slurm_config(tmp_path, **{key: value}))
    with pytest.raises(BackendError, match=text):
        backend.start(1)
    backend.disconnect()


def test_job_matches_the_settings(slurm: SlurmCluster, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/commands\nexec sh -c "$1"\n')
    login.chmod(0o755)
    config = slurm_config(
        tmp_path,
        slurm_partition="high",
        slurm_account="our-project",
        slurm_qos="normal",
        slurm_constraint="fast",
        slurm_cpus=2,
        slurm_memory="100M",
        slurm_gpus=1,
        slurm_time_minutes=7,
        slurm_options=("--comment=by hand",),
        slurm_setup=f"touch {tmp_path}/set-up\nexec sleep 60",
        slurm_log_directory=str(tmp_path / "with blank"),
        slurm_prefix=f"env A=b {login}",
        slurm_backlog=3,
    )
    backend = SlurmBackend(config)
    capacity = backend.capacity
    assert (capacity.unit_slots, capacity.max_units, capacity.backlog) == (2, 4, 3)
    assert config.per_worker_capabilities == {"gpu": 1.0}
    [unit_id] = backend.start(1)
    [unit] = until(lambda: [unit for unit in backend.list() if unit.state is UnitState.RUNNING], WAIT_SECONDS)
    assert 0 < unit.remaining_seconds <= 7 * 60 + 1e-6
    job = slurm.run("scontrol", "show", "job", "-d", unit_id)
    asked = "Partition=high Account=our-project Features=fast TimeLimit=00:07:00 CPUs/Task=2 MinMemoryNode=100M"
    assert [part for part in (*asked.split(), "Comment=by hand", "Requeue=0", "gpu:1") if part not in job] == []
    assert f"StdOut={tmp_path}/with blank/slurm-{unit_id}.out" in job
    assert "--qos=normal" in (tmp_path / "commands").read_text()
    assert until((tmp_path / "set-up").exists)
    backend.stop([unit_id])
    until(lambda: all(unit.state is UnitState.STOPPED for unit in backend.list()), WAIT_SECONDS)
    backend.close()


def test_unanswered_submission_waits_until_its_outcome_is_known(slurm: SlurmCluster, tmp_path: Path) -> None:
    cut_off = tmp_path / "cut_off"
    login = tmp_path / "login"
    login.write_text(f'#!/bin/sh\nsh -c "$1" || exit\ncase "$1" in *sbatch*) [ ! -e {cut_off} ] || exit 255;; esac\n')
    login.chmod(0o755)
    backend = SlurmBackend(slurm_config(tmp_path, slurm_prefix=str(login)))
    cut_off.touch()
    with pytest.raises(BackendError, match="exit code 255"):
        backend.start(2)
    cut_off.unlink()
    started = backend.start(2)
    assert sorted(started) == sorted(unit.unit_id for unit in backend.list())
    backend.stop(started)
    until(lambda: all(unit.state is UnitState.STOPPED for unit in backend.list()), WAIT_SECONDS)
    backend.close()


# -- the time limit


def test_worker_is_drained_before_its_job_ends(
    slurm: SlurmCluster, at_the_limit: tuple[list[ScalerFuture], str]
) -> None:
    futures, unit_id = at_the_limit
    eventually(lambda: slurm.jobs("all", AT_THE_LIMIT).get(unit_id) not in ("RUNNING", "COMPLETING"))
    assert slurm.jobs("all", AT_THE_LIMIT)[unit_id] == "COMPLETED"
    done = [future for future in futures if future.done()]
    assert len(done) > 40
    assert all(future.exception() is None for future in done)
