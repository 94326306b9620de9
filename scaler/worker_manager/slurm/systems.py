"""The batch systems as tables: their command lines, and the meaning of their answers. Pure."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from shlex import quote

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.processes import describe_exit
from scaler.protocol.messages import UnitState
from scaler.worker_manager.polled import SeenUnit
from scaler.worker_manager.slurm import SlurmConfig

UNIT_ID_VARIABLE = "SCALER_UNIT_ID"
MINUTE, HOUR, DAY = 60, 3600, 86_400
_FAILURES = {
    "BOOT_FAIL": "its node did not boot",
    "CANCELLED": "cancelled by a user or the administrator",
    "DEADLINE": "its deadline passed",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "more memory than slurm_memory",
    "PREEMPTED": "preempted by a job of higher priority",
    "REVOKED": "revoked: another cluster of the federation runs it",
    "TIMEOUT": "at its time limit, slurm_time_minutes",
}
_STATES = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"), UnitState.WAITING),
    "CONFIGURING": UnitState.PENDING,
    **dict.fromkeys(("COMPLETING", "SIGNALING", "STAGE_OUT"), UnitState.STOPPING),
    "COMPLETED": UnitState.STOPPED,
    **dict.fromkeys(("FAILED", *_FAILURES), UnitState.FAILED),
}
"""Of Slurm. A job in any other state has its nodes: RUNNING, RESIZING, SUSPENDED, STOPPED."""
_REASONS = {**_FAILURES, "SUSPENDED": "suspended by Slurm", "STOPPED": "stopped by Slurm"}


class BatchSystem(ABC):
    """One batch system. Commands are argument lists; the script of a job is the input of the one that submits."""

    title: str
    stop_by_hand: str
    stop_grace_seconds: float
    """Less than the system's usual time between SIGTERM and SIGKILL."""
    unit_id: str
    """The unit id of a job as its shell writes it."""
    output_form: str
    """Name of the file with the output of a job, where UNIT stands for its id."""

    @abstractmethod
    def submit(self, config: SlurmConfig, name: str, directory: str, count: int) -> list[str]:
        """Return the command that submits jobs."""

    @abstractmethod
    def submitted(self, output: str, count: int) -> list[str]:
        """Return the unit ids of the submitted jobs, from the output of that command. Raises ValueError."""

    def dry_run(self, submit: Sequence[str]) -> list[str]:
        """Return the command that checks whether jobs would be accepted; empty where the system has none."""
        del submit
        return []

    @abstractmethod
    def listing(self, name: str) -> list[str]:
        """Return the command that lists the jobs of this name."""

    @abstractmethod
    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        """Return the jobs in the output of that command. Raises ValueError."""

    @abstractmethod
    def cancel(self, unit_ids: Sequence[str]) -> list[str]:
        """Return the command that cancels jobs. It fails when some have ended, and cancels the others."""


class Slurm(BatchSystem):
    title = "Slurm"
    stop_by_hand = "cancel each with `scancel JOB`"
    stop_grace_seconds = 25.0  # KillWait is 30 s by default
    unit_id = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    output_form = "slurm-UNIT.out"
    columns = (
        ("JobArrayID", 40),
        ("State", 20),
        ("exit_code", 12),
        ("PendingTime", 16),
        ("TimeUsed", 20),
        ("TimeLeft", 20),
        ("NodeList", 80),
        ("Reason", 300),
    )

    def submit(self, config: SlurmConfig, name: str, directory: str, count: int) -> list[str]:
        values = {
            "partition": config.slurm_partition,
            "account": config.slurm_account,
            "qos": config.slurm_qos,
            "constraint": config.slurm_constraint,
            "mem": config.slurm_memory,
            "gpus": config.slurm_gpus,
            "time": config.slurm_time_minutes,
        }
        return [
            *("sbatch", "--parsable", f"--job-name={name}", f"--array=0-{count - 1}", "--no-requeue"),
            *("--nodes=1", "--ntasks=1", f"--cpus-per-task={config.slurm_cpus}"),
            f"--output={directory}/slurm-%A_%a.out",
            *(f"--{option}={value}" for option, value in values.items() if value),
            *config.slurm_options,
        ]

    def submitted(self, output: str, count: int) -> list[str]:
        found = re.search(r"^(\d+)(;.*)?$", output, re.MULTILINE)
        if found is None:
            raise ValueError(f"sbatch did not print the id of a job: {output[:200]!r}")
        return [f"{found[1]}_{index}" for index in range(count)]

    def dry_run(self, submit: Sequence[str]) -> list[str]:
        return [*submit, "--test-only"]

    def listing(self, name: str) -> list[str]:
        form = ",".join(f"{column}:{width}" for column, width in self.columns)
        return ["squeue", f"--name={name}", "--me", "--array", "--states=all", "--noheader", f"--Format={form}"]

    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        del name
        return dict(map(self._job, filter(str.strip, output.splitlines())))

    def _job(self, line: str) -> tuple[str, SeenUnit]:
        fields, at = [], 0
        for _, width in self.columns:
            fields.append(line[at : at + width].strip())
            at += width
        unit_id, status, code, pending, used, left, nodes, why = fields
        state = _STATES.get(status, UnitState.RUNNING)
        age = seconds_of(pending) + seconds_of(used)
        if state is UnitState.WAITING:
            reason = "" if why in ("None", "") else f"queued: {why}"
        elif status == "FAILED":
            reason = describe_wait(int(code))
        else:
            reason = _REASONS.get(status, "")
        if reason and nodes and state is not UnitState.WAITING:
            reason = f"{reason} ({nodes})"
        remaining = seconds_of(left) if state is UnitState.RUNNING else 0.0
        return unit_id, SeenUnit(state, age, reason, remaining)

    def cancel(self, unit_ids: Sequence[str]) -> list[str]:
        return ["scancel", *unit_ids]


class Pbs(BatchSystem):
    """PBS Professional and OpenPBS, whose qstat writes JSON."""

    title = "PBS"
    stop_by_hand = "cancel each with `qdel JOB`"
    stop_grace_seconds = 8.0  # kill_delay is 10 s by default
    unit_id = "${PBS_JOBID}"
    output_form = "UNIT.OU"
    _states = {  # noqa: RUF012 (a table)
        **dict.fromkeys("QHWT", UnitState.WAITING),
        **dict.fromkeys("RSUB", UnitState.RUNNING),
        "E": UnitState.STOPPING,
        **dict.fromkeys("FXM", UnitState.FAILED),
    }

    def submit(self, config: SlurmConfig, name: str, directory: str, count: int) -> list[str]:
        del count
        chunk = f"select=1:ncpus={config.slurm_cpus}"
        chunk += f":mem={config.memory_mebibytes}mb" if config.slurm_memory else ""
        chunk += f":ngpus={config.slurm_gpus}" if config.slurm_gpus else ""
        chunk += f":{config.slurm_constraint}" if config.slurm_constraint else ""
        walltime = f"walltime={clock(config.slurm_time_minutes)}"
        named = {"-q": config.slurm_partition, "-A": config.slurm_account}
        return [
            *("qsub", "-N", name, "-r", "n", "-j", "oe", "-o", f"{directory}/", "-S", "/bin/sh"),
            *("-l", chunk, "-l", walltime),
            *(part for option, value in named.items() if value for part in (option, value)),
            *config.slurm_options,
        ]

    def submitted(self, output: str, count: int) -> list[str]:
        del count
        found = re.search(r"^\s*(\d+\S*)\s*$", output, re.MULTILINE)
        if found is None:
            raise ValueError(f"qsub did not print the id of a job: {output[:200]!r}")
        return [found[1]]

    def listing(self, name: str) -> list[str]:
        del name
        return ["qstat", "-x", "-f", "-F", "json"]

    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        jobs = json.loads(output or "{}").get("Jobs", {})
        return {unit_id: self._job(job) for unit_id, job in jobs.items() if job.get("Job_Name") == name}

    def _job(self, job: Mapping[str, object]) -> SeenUnit:
        used = seconds_of(_member(job, "resources_used", "walltime"))
        limit = seconds_of(_member(job, "Resource_List", "walltime"))
        state = self._states.get(str(job.get("job_state")), UnitState.RUNNING)
        code = int(str(job.get("Exit_status", 0)))
        comment = str(job.get("comment", ""))
        reason = f"queued: {comment}" if state is UnitState.WAITING and comment else ""
        if state is UnitState.FAILED:
            state = UnitState.STOPPED if code == 0 else UnitState.FAILED
            # A status above 256 is a signal; below 0, PBS itself has ended the job.
            reason = comment or "ended by PBS" if code < 0 else describe_exit(256 - code if code > 256 else code)
        remaining = max(1.0, limit - used) if state is UnitState.RUNNING and limit else 0.0
        return SeenUnit(state, used, reason, remaining)

    def cancel(self, unit_ids: Sequence[str]) -> list[str]:
        return ["qdel", *unit_ids]


class Lsf(BatchSystem):
    """IBM Spectrum LSF 10, whose bjobs prints the columns that it is given."""

    title = "LSF"
    stop_by_hand = "cancel each with `bkill JOB`"
    stop_grace_seconds = 8.0  # SIGINT, 10 s later SIGTERM, and 10 s later SIGKILL
    unit_id = "${LSB_JOBID}"
    output_form = "lsf-UNIT.out"
    columns = ("jobid", "stat", "exit_code", "run_time", "time_left", "pend_reason", "exit_reason")
    _states = {  # noqa: RUF012 (a table)
        **dict.fromkeys(("PEND", "PSUSP", "WAIT"), UnitState.WAITING),
        "PROV": UnitState.PENDING,
        "DONE": UnitState.STOPPED,
        **dict.fromkeys(("EXIT", "ZOMBI"), UnitState.FAILED),
    }

    def submit(self, config: SlurmConfig, name: str, directory: str, count: int) -> list[str]:
        del count
        memory = f"{config.memory_mebibytes}MB"
        wants = [f"rusage[mem={memory}]"] if config.slurm_memory else []
        wants += [f"select[{config.slurm_constraint}]"] if config.slurm_constraint else []
        named = {
            "-q": config.slurm_partition,
            "-P": config.slurm_account,
            "-M": memory if config.slurm_memory else "",
            "-gpu": f"num={config.slurm_gpus}" if config.slurm_gpus else "",
            "-R": " ".join(["span[hosts=1]", *wants]),
        }
        return [
            *("bsub", "-J", name, "-rn", "-n", str(config.slurm_cpus), "-W", str(config.slurm_time_minutes)),
            *("-o", f"{directory}/lsf-%J.out", "-L", "/bin/sh"),
            *(part for option, value in named.items() if value for part in (option, value)),
            *config.slurm_options,
        ]

    def submitted(self, output: str, count: int) -> list[str]:
        del count
        found = re.search(r"Job <(\d+)>", output)
        if found is None:
            raise ValueError(f"bsub did not print the id of a job: {output[:200]!r}")
        return [found[1]]

    def listing(self, name: str) -> list[str]:
        # Without any job, bjobs writes a message to stderr, and in some releases fails.
        return ["bjobs", "-a", "-J", name, "-noheader", "-o", f"{' '.join(self.columns)} delimiter='|'"]

    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        del name
        return dict(map(self._job, filter(None, map(str.strip, output.splitlines()))))

    def _job(self, line: str) -> tuple[str, SeenUnit]:
        job_id, status, code, used, left, pending, why = line.split("|", len(self.columns) - 1)
        state = self._states.get(status, UnitState.RUNNING)
        reason = f"queued: {pending.strip('; ')}" if state is UnitState.WAITING and pending not in ("", "-") else ""
        if state is UnitState.FAILED:
            given = why if why not in ("", "-") else ""
            reason = given or describe_shell(int(code) if code.strip().isdigit() else None)
        hours = re.match(r"(\d+):(\d+)", left)
        remaining = int(hours[1]) * HOUR + int(hours[2]) * MINUTE if hours and state is UnitState.RUNNING else 0
        ran = re.match(r"\d+", used)
        return job_id, SeenUnit(state, float(ran[0]) if ran else 0.0, reason, float(remaining))

    def cancel(self, unit_ids: Sequence[str]) -> list[str]:
        return ["bkill", *unit_ids]


SYSTEMS: Mapping[str, BatchSystem] = {"slurm": Slurm(), "pbs": Pbs(), "lsf": Lsf()}


def job_script(config: SlurmConfig, system: BatchSystem, document: str, credential_file: str) -> str:
    """Return the script of all jobs of a manager. It has no secret: users may be shown the scripts of others."""
    credential = (
        f"exec 9<{quote(credential_file)} || exit 1\nexport SCALER_CREDENTIAL_FD=9\n" if credential_file else ""
    )
    return (
        "#!/bin/sh\n"
        f"{config.slurm_setup}\n"
        f'export {UNIT_ID_VARIABLE}="{system.unit_id}"\n'
        f"export {WORKER_CONFIG_VARIABLE}={quote(document)}\n"
        f"{credential}"
        # The agent takes the shell's place, so that it gets the signals of the batch system.
        f"exec {quote(config.slurm_python)} -P -m scaler.worker\n"
    )


def seconds_of(text: str) -> float:
    """Return the seconds that a duration means: 75, 1:15, 0:01:15 or 2-00:00:00; 0 for words such as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)??(?:(\d+):)?(\d+)", text.strip())
    if found is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(days * DAY + hours * HOUR + minutes * MINUTE + seconds)


def clock(minutes: int) -> str:
    """Return a time limit as hours, minutes and seconds."""
    return f"{minutes // MINUTE:02}:{minutes % MINUTE:02}:00"


def describe_wait(status: int) -> str:
    """Return how a process ended in words, from a status of wait(2)."""
    return describe_exit(-(status & 0x7F)) if status & 0x7F else describe_exit(status >> 8)


def describe_shell(code: int | None) -> str:
    """Return how a process ended in words, from an exit code of a shell."""
    return describe_exit(128 - code if code is not None and code > 128 else code)


def _member(job: Mapping[str, object], table: str, key: str) -> str:
    found = job.get(table)
    return str(found.get(key, "")) if isinstance(found, dict) else ""
