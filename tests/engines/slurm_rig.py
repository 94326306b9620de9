"""A real Slurm on this machine: munged, slurmctld, and two slurmd on loopback, as test processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scaler.cluster.supervisor import ReservedPorts
from tests.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "setpriv")
NODES = ("n1", "n2")
NODE_CPUS = 4
PRESENT = "PENDING,RUNNING,COMPLETING,SUSPENDED,CONFIGURING"
NO_COMMENT = "(null)"
CONFIG = r"""
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
EnforcePartLimits=ALL
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
MinJobAge=300
KillWait=10
MessageTimeout=3
MpiDefault=none
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs={cpus} RealMemory=4000 Weight=1 \
    Feature=fast Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={last} CPUs={cpus} RealMemory=4000 Weight=2
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=60 PriorityTier=1 PreemptMode=CANCEL
PartitionName=high Nodes=n[1-2] MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


def missing_programs() -> str:
    """Return why Slurm cannot run on this machine, or an empty string if it can."""
    if os.getuid():
        return "munged and slurmd need root"
    # A user's search path may lack sbin.
    return ", ".join(name for name in PROGRAMS if not shutil.which(name, path=search_path()))


def search_path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


@contextmanager
def slurm_cluster(directory: Path) -> Iterator[SlurmCluster]:
    """Yield a running Slurm with its commands on the path. Skips the test if Slurm cannot run here."""
    if missing := missing_programs():
        pytest.skip(f"THERE IS NO SLURM HERE, so nothing of it is tested: {missing}")
    with running_slurm(directory) as made:
        yield made


@contextmanager
def running_slurm(
    directory: Path, more_config: str = "", before: Callable[[SlurmCluster], None] = lambda _: None
) -> Iterator[SlurmCluster]:
    """Yield a running Slurm. more_config: lines of slurm.conf. before: called between munged and slurmctld."""
    ports = ReservedPorts(1 + len(NODES))
    ports.release()
    made = SlurmCluster(directory, ports, more_config)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("PATH", "SLURM_CONF"):
                patch.setenv(name, made.environment[name])
            made.start_munge()
            before(made)
            made.start()
            yield made
    finally:
        made.close()


class SlurmCluster:
    """Nodes n1 and n2 with four CPUs each. Partitions: low (the default) and high, whose jobs preempt."""

    def __init__(self, directory: Path, ports: ReservedPorts, more_config: str = "") -> None:
        self.directory = directory
        self.environment = {**os.environ, "PATH": search_path(), "SLURM_CONF": str(directory / "slurm.conf")}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "state"):
            (directory / name).mkdir()
        text = CONFIG.format(
            host=socket.gethostname(),
            directory=directory,
            port=ports.first,
            first=ports.first + 1,
            last=ports.first + 2,
            cpus=NODE_CPUS,
        )
        (directory / "slurm.conf").write_text(text + more_config)
        (directory / "gres.conf").write_text("NodeName=n1 Name=gpu File=/dev/zero\n")
        (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start_munge(self) -> None:
        munge = self.directory / "munge"
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge.chmod(0o755)
        files = [f"--{name}-file={munge}/{name}" for name in ("key", "log", "pid", "seed")]
        self.run_daemon("munged", ["munged", "-F", "--force", f"--socket={munge}/socket", *files])
        until((munge / "socket").exists)

    def start(self) -> None:
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until(
            lambda: self.output_of("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * len(NODES),
            30.0,
            0.1,
        )

    def start_controller(self) -> None:
        self.run_daemon("slurmctld", ["slurmctld", "-D"])
        until(lambda: self._call("scontrol", "ping").returncode == 0, 30.0, 0.1)

    def start_node(self, node: str) -> None:
        self.run_daemon(node, ["slurmd", "-D", "-N", node])

    def kill(self, name: str) -> None:
        """Kill a daemon: slurmctld, n1, or n2."""
        process = self._started.pop(name)
        process.kill()
        process.wait()

    def output_of(self, *command: str) -> str:
        """Return the output of a Slurm command, or an empty string if it fails."""
        return self._call(*command).stdout

    def run(self, *command: str) -> str:
        """Return the output of a Slurm command. Raises AssertionError if it fails."""
        ran = self._call(*command)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def jobs(self, states: str = PRESENT, comment: str = NO_COMMENT) -> dict[str, str]:
        """Return the states of jobs by id. comment: the comment given at submission."""
        lines = self.run("squeue", "-h", "-r", "-t", states, "-o", "%i %T %k").splitlines()
        return {
            unit_id: state for unit_id, state, given in (line.split(maxsplit=2) for line in lines) if given == comment
        }

    def running(self, comment: str = NO_COMMENT) -> list[str]:
        return sorted(self.jobs("RUNNING", comment))

    def running_on(self, node: str) -> list[str]:
        return self.run("squeue", "-h", "-r", "-t", "RUNNING", "-w", node, "-o", "%i").split()

    def lose(self, node: str) -> None:
        """Kill a node with everything that runs on it, and wait until the controller notices."""
        for unit_id in self.running_on(node):
            job_id = self.run("squeue", "-h", "-j", unit_id, "-o", "%A").strip()
            steps = [each for each in psutil.process_iter(["cmdline"]) if is_step(each, job_id)]
            assert steps, "no step found: a surviving step would report its job's end, as if the node had not failed"
            for process in [*steps, *processes_of(unit_id)]:
                with contextlib.suppress(psutil.NoSuchProcess):  # ended with the previous process
                    process.kill()
        self.kill(node)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    @contextmanager
    def node_again(self, node: str) -> Iterator[None]:
        """Restart the node afterwards if the test has lost it, even if the test fails."""
        try:
            yield
        finally:
            if node not in self._started:
                self.start_node(node)

    def close(self) -> None:
        """End all jobs, then the daemons."""
        if "n1" in self._started and "slurmctld" not in self._started:
            self.start_controller()
        if "slurmctld" in self._started and self.run("squeue", "-h"):
            self.output_of("scancel", "-s", "KILL", "-b", "-u", "root")
            self.output_of("scancel", "-u", "root")
            until(lambda: not self.run("squeue", "-h"), 30.0, 0.1)
        for process in reversed(self._started.values()):
            process.kill()
            process.wait()

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30, check=False)

    def run_daemon(self, name: str, command: list[str]) -> None:
        # If the tests are killed, so are the daemons.
        prefix = ["setpriv", "--pdeathsig", "KILL"]
        log = (self.directory / f"{name}.out").open("ab")
        self._started[name] = subprocess.Popen(
            [*prefix, *command], env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        log.close()


def is_step(process: psutil.Process, job_id: str) -> bool:
    # The title may be one word or two: psutil splits it at remains of the overwritten arguments.
    words = " ".join(process.info["cmdline"] or ()).split()
    return words == ["slurmstepd:", f"[{job_id}.batch]"]


def processes_of(unit_id: str) -> list[psutil.Process]:
    """Return the processes started by a unit's job."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SCALER_UNIT_ID") == unit_id:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
