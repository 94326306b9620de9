"""Workers as jobs of Slurm, PBS or LSF, by their commands. Jobs outlive their manager: a later one finds their name."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Count, CountOrNone, Names, matching, must
from scaler.config.worker_managers import FAR_WORKERS, WorkerManagerConfig
from scaler.plugins import WorkerManagerType

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.slurm.backend:SlurmBackend", settings="scaler.worker_manager.slurm:SlurmConfig"
)
_MEBIBYTES = {"M": 1, "G": 1024, "T": 1024**2}
_MEMORY = re.compile(r"(\d{1,9})([MGT])")
Text = Annotated[str, must(str.isprintable, "must be one line without control characters")]
Memory = Annotated[str, matching(rf"({_MEMORY.pattern})?", "must be a whole number and M, G or T, such as 16G")]


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(WorkerManagerConfig):
    """Worker manager slurm: jobs of a batch system."""

    note = FAR_WORKERS

    type: Literal["slurm"] = "slurm"
    slurm_time_minutes: Annotated[Count, Setting(metavar="MINUTES")]
    """Time limit of a job. Its worker gets nothing new half a minute before, or twice the time of the longest task."""
    slurm_system: Literal["slurm", "pbs", "lsf"] = "slurm"
    """The batch system, by its commands: sbatch, squeue and scancel; qsub, qstat and qdel; or bsub, bjobs and bkill."""
    slurm_partition: Annotated[Text, Setting(default_text="the system's default", metavar="NAME")] = ""
    """Partition of the jobs, or several with commas between them; the queue of PBS and LSF."""
    slurm_account: Annotated[Text, Setting(default_text="the user's default", metavar="NAME")] = ""
    """Account that pays for the jobs; the project of LSF."""
    slurm_qos: Annotated[Text, Setting(default_text="the account's default", metavar="NAME")] = ""
    """Quality of service of the jobs. Not for PBS and LSF."""
    slurm_constraint: Annotated[Text, Setting(default_text="none", metavar="FEATURES")] = ""
    """Features that the nodes must have; more resources of PBS, such as arch=linux; select string of LSF."""
    slurm_cpus: Annotated[Count, Setting(metavar="COUNT")] = 1
    """CPUs of a job, and workers in it."""
    slurm_memory: Annotated[Memory, Setting(default_text="the system's default", metavar="SIZE")] = ""
    """Memory of a job, such as 16G."""
    slurm_gpus: Annotated[CountOrNone, Setting(metavar="COUNT")] = 0
    """GPUs of a job, which its worker offers to tasks as the capability gpu unless per_worker_capabilities has one."""
    slurm_setup: Annotated[str, Setting(default_text="none", metavar="COMMANDS")] = ""
    """Lines of a shell script that run in each job before its worker, such as module load python."""
    slurm_python: Annotated[Text, Setting(default_text="that of the manager", metavar="PATH")] = ""
    """Python on the nodes, with this version of scaler: a path, or a name that slurm_setup makes known."""
    slurm_log_directory: Annotated[Text, Setting(metavar="PATH")] = "~/.local/state/scaler/slurm"
    """Directory for the output of jobs and for their credential, on a file system that the nodes share with the machine
    that the commands run on."""
    slurm_options: Annotated[Names, Setting(default_text="none", metavar="OPTION")] = ()
    """More options of the command that submits, each an item of the list. They come last, so they win."""
    slurm_prefix: Annotated[Text, Setting(default_text="none", metavar="COMMAND")] = ""
    """Runs the commands elsewhere, such as ssh login: a command whose last argument is the line of a shell."""
    slurm_backlog: Annotated[CountOrNone, Setting(metavar="COUNT")] = 1
    """Jobs that stay in the queue when fewer units are wanted: they have waited long, and new ones would wait again."""

    def __post_init__(self) -> None:
        self.default("slurm_python", sys.executable)
        self.offer_gpus(self.slurm_gpus)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.slurm_qos and self.slurm_system != "slurm":
            raise ValueError(f"slurm_qos is for slurm only: {self.slurm_system} takes it as one of slurm_options")

    @property
    def memory_mebibytes(self) -> int:
        """Memory of a job in MiB; 0 for the system's default, unknown here."""
        found = _MEMORY.fullmatch(self.slurm_memory)
        return int(found[1]) * _MEBIBYTES[found[2]] if found else 0
