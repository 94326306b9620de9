"""Runs workers as jobs of Slurm, PBS, or LSF. Jobs outlive their manager, and a new manager finds them by name."""

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
Memory = Annotated[str, matching(rf"({_MEMORY.pattern})?", "must be an integer followed by M, G, or T, such as 16G")]


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(WorkerManagerConfig):
    """Worker manager slurm: jobs in a batch system."""

    note = FAR_WORKERS

    type: Literal["slurm"] = "slurm"
    slurm_time_minutes: Annotated[Count, Setting(metavar="MINUTES")]
    """Time limit of a job. Its worker drains before the limit, by 30 seconds or twice the slowest function's mean
    duration, whichever is longer."""
    slurm_system: Literal["slurm", "pbs", "lsf"] = "slurm"
    """Batch system: slurm (sbatch, squeue, scancel), pbs (qsub, qstat, qdel), or lsf (bsub, bjobs, bkill)."""
    slurm_partition: Annotated[Text, Setting(default_text="the system's default", metavar="NAME")] = ""
    """Partition for the jobs, or a comma-separated list; the queue in PBS and LSF."""
    slurm_account: Annotated[Text, Setting(default_text="the user's default", metavar="NAME")] = ""
    """Account to charge; the project in LSF."""
    slurm_qos: Annotated[Text, Setting(default_text="the account's default", metavar="NAME")] = ""
    """Quality of service for the jobs. Slurm only."""
    slurm_constraint: Annotated[Text, Setting(default_text="none", metavar="FEATURES")] = ""
    """Features that nodes must have. PBS: additional resources, such as arch=linux. LSF: a select string."""
    slurm_cpus: Annotated[Count, Setting(metavar="COUNT")] = 1
    """CPUs and workers per job."""
    slurm_memory: Annotated[Memory, Setting(default_text="the system's default", metavar="SIZE")] = ""
    """Memory per job, such as 16G."""
    slurm_gpus: Annotated[CountOrNone, Setting(metavar="COUNT")] = 0
    """GPUs per job. Workers offer them as the gpu capability unless per_worker_capabilities sets gpu."""
    slurm_setup: Annotated[str, Setting(default_text="none", metavar="COMMANDS")] = ""
    """Shell commands to run in each job before its worker starts, such as module load python."""
    slurm_python: Annotated[Text, Setting(default_text="the manager's", metavar="PATH")] = ""
    """Python with this version of scaler on the nodes: a path, or a name that slurm_setup puts on PATH."""
    slurm_log_directory: Annotated[Text, Setting(metavar="PATH")] = "~/.local/state/scaler/slurm"
    """Directory for job output and credentials, on a file system shared by the nodes and the submit host."""
    slurm_options: Annotated[Names, Setting(default_text="none", metavar="OPTION")] = ()
    """Additional options for the submit command, one per list item. They override all earlier options."""
    slurm_prefix: Annotated[Text, Setting(default_text="none", metavar="COMMAND")] = ""
    """Command that runs the batch commands on another host, such as ssh login. Receives a shell command line as its
    last argument."""
    slurm_backlog: Annotated[CountOrNone, Setting(metavar="COUNT")] = 1
    """Number of queued jobs to keep when fewer units are needed, so that the jobs keep their place in the queue."""

    def __post_init__(self) -> None:
        self.default("slurm_python", sys.executable)
        self.offer_gpus(self.slurm_gpus)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.slurm_qos and self.slurm_system != "slurm":
            raise ValueError(f"slurm_qos applies only to Slurm: for {self.slurm_system}, use slurm_options")

    @property
    def memory_mebibytes(self) -> int:
        """Memory of a job in MiB; 0 for the system's default, which is unknown here."""
        found = _MEMORY.fullmatch(self.slurm_memory)
        return int(found[1]) * _MEBIBYTES[found[2]] if found else 0
