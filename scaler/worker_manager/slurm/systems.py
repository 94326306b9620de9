"""Command lines of the batch systems, and parsers of their output. Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise

from scaler.processes import describe_exit
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED
from scaler.worker_manager.polled import MIN_REMAINING_SECONDS, SeenUnit
from scaler.worker_manager.slurm import SlurmConfig

ENDED_LISTED = 500  # maximum number of ended jobs read from PBS
MINUTE, HOUR, DAY = 60, 3600, 86_400
_FAILURES = {
    "BOOT_FAIL": "its node failed to boot",
    "CANCELLED": "cancelled by a user or an administrator",
    "DEADLINE": "its deadline passed",
    "LAUNCH_FAILED": "Slurm could not start it",
    "RECONFIG_FAIL": "its node could not be configured",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it used more memory than slurm_memory",
    "PREEMPTED": "preempted by a job with higher priority",
    "REVOKED": "revoked: another cluster in the federation runs it",
    "TIMEOUT": "it reached its time limit, slurm_time_minutes",
}
_STATES = {
    **dict.fromkeys(
        ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING"),
        UnitState.WAITING,
    ),
    **dict.fromkeys(("CONFIGURING", "POWER_UP_NODE"), UnitState.PENDING),
    **dict.fromkeys(("RUNNING", "RESIZING", "SUSPENDED", "STOPPED"), UnitState.RUNNING),
    **dict.fromkeys(("COMPLETING", "SIGNALING", "STAGE_OUT", "UPDATE_DB"), UnitState.STOPPING),
    "COMPLETED": UnitState.STOPPED,
    **dict.fromkeys(("FAILED", *_FAILURES), UnitState.FAILED),
}
_REASONS = {**_FAILURES, "SUSPENDED": "suspended by Slurm", "STOPPED": "stopped by Slurm"}


TOGETHER = "+"
"""Suffix of the names of jobs with several units."""


class BatchSystem(ABC):
    """One batch system. Commands are argument lists; a job's script is the input of the submit command."""

    title: str
    stop_by_hand: str
    stop_grace_seconds: float  # less than the usual time from SIGTERM to SIGKILL
    most_at_once: int = 1
    most_nodes: int = 1  # maximum number of nodes of one job
    unit_id: str  # shell expression for a job's unit id
    submits: str
    cancels: str
    job_id: str  # pattern of a job's id in the output of `submits`, after any output of a site's wrapper
    output_form: str  # file name of a job's output, where UNIT stands for its id

    @abstractmethod
    def submit(self, config: SlurmConfig, name: str, directory: str, count: int, nodes: int = 1) -> list[str]:
        """Return the command that submits jobs, or one job with a unit on each of several nodes."""

    def submitted(self, output: str, _count: int, _nodes: int = 1) -> list[str]:
        """Return the unit ids of submitted jobs from the command's output. Raises ValueError."""
        found = re.findall(self.job_id, output, re.MULTILINE)
        if not found:
            raise ValueError(f"{self.submits} did not print the id of a job: {output[:200]!r}")
        return [found[-1]]

    def job_of(self, unit_id: str) -> str:
        """Return the id of a unit's job."""
        return unit_id

    @abstractmethod
    def listing(self, config: SlurmConfig, name: str) -> list[str]:
        """Return the command that lists the user's jobs with this name."""

    @abstractmethod
    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        """Return the jobs with this name in the command's output."""

    def cancel(self, _config: SlurmConfig, unit_ids: Sequence[str]) -> list[str]:
        """Return the command that cancels jobs. If some have ended, the command fails but cancels the rest."""
        return [self.cancels, *unit_ids]


class Slurm(BatchSystem):
    title = "Slurm"
    stop_by_hand = "cancel each with `scancel JOB`"
    stop_grace_seconds = 25.0  # KillWait is 30 s by default
    most_at_once = 1000  # MaxArraySize is 1001 by default
    most_nodes = 1000
    unit_id = (
        "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}${SCALER_RANK:+.$SCALER_RANK}"
    )
    submits = "sbatch"
    cancels = "scancel"
    job_id = r"^(?:Submitted batch job )?(\d+)(?:;\S*| on cluster \S+)?\s*$"  # a wrapper may omit --parsable
    output_form = "slurm-UNIT.out"
    columns = (
        ("Name", 20),
        ("JobArrayID", 40),
        ("NumTasks", 10),
        ("State", 20),
        ("exit_code", 12),
        ("PendingTime", 16),
        ("TimeUsed", 20),
        ("TimeLeft", 20),
        ("NodeList", 80),
        ("Reason", 300),
    )

    def submit(self, config: SlurmConfig, name: str, directory: str, count: int, nodes: int = 1) -> list[str]:
        values = {
            "partition": config.slurm_partition,
            "account": config.slurm_account,
            "qos": config.slurm_qos,
            "constraint": config.slurm_constraint,
            "mem": config.slurm_memory,
            "gpus" if nodes == 1 else "gpus-per-node": config.slurm_gpus,
            "time": config.slurm_time_minutes,
        }
        # A site may disable arrays, so a single job uses none.
        array = [f"--array=0-{count - 1}", f"--output={directory}/slurm-%A_%a.out"]
        return [
            *("sbatch", "--parsable", f"--job-name={name}{TOGETHER if nodes > 1 else ''}", "--no-requeue"),
            *(array if count > 1 else [f"--output={directory}/slurm-%j.out"]),
            *("--export=NIL", "--propagate=NONE", f"--chdir={directory}"),
            *(f"--nodes={nodes}", f"--ntasks={nodes}", f"--cpus-per-task={config.slurm_cpus}"),
            *(f"--{option}={value}" for option, value in values.items() if value),
            *config.slurm_options,
        ]

    def submitted(self, output: str, count: int, nodes: int = 1) -> list[str]:
        [job_id] = super().submitted(output, count)
        if nodes > 1:
            return [f"{job_id}.{rank}" for rank in range(nodes)]
        return [f"{job_id}_{index}" for index in range(count)] if count > 1 else [job_id]

    def job_of(self, unit_id: str) -> str:
        return unit_id.partition(".")[0]

    def listing(self, config: SlurmConfig, name: str) -> list[str]:
        form = ",".join(f"{column}:{width}" for column, width in self.columns)
        own = [f"--name={name},{name}{TOGETHER}", "--me", *self._clusters(config)]
        return ["squeue", *own, "--array", "--states=all", "--noheader", f"--Format={form}"]

    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        jobs: dict[str, SeenUnit] = {}
        for fields in filter(None, (self._fields(line, name) for line in output.splitlines())):
            job_id, job = fields["JobArrayID"], self._job(fields)
            nodes = int(fields["NumTasks"]) if fields["Name"].endswith(TOGETHER) else 0
            for unit_id in [f"{job_id}.{rank}" for rank in range(nodes)] or [job_id]:
                # Each cluster of a federation lists the job, and all except one show it as revoked.
                if unit_id not in jobs or jobs[unit_id].state in ENDED:
                    jobs[unit_id] = job
        return jobs

    def _fields(self, line: str, name: str) -> dict[str, str] | None:
        if (found := re.search(rf"{name}{re.escape(TOGETHER)}? ", line)) is None:
            return None
        fields, at = {}, found.start()
        for column, width in self.columns:
            fields[column] = line[at : at + width].strip()
            at += width
        return fields if re.fullmatch(r"\d+(_\d+)?", fields["JobArrayID"]) else None

    @staticmethod
    def _clusters(config: SlurmConfig) -> list[str]:
        options = [*config.slurm_options, ""]
        for option, value in pairwise(options):
            if option in ("-M", "--clusters"):
                return [f"--clusters={value}"]
            if found := re.match("(-M|--clusters?=)(.+)", option):
                return [f"--clusters={found[2]}"]
        return []

    @staticmethod
    def _job(fields: Mapping[str, str]) -> SeenUnit:
        status, nodes, why = fields["State"], fields["NodeList"], fields["Reason"]
        state = _STATES.get(status, UnitState.PENDING)
        age = seconds_of(fields["PendingTime"]) + seconds_of(fields["TimeUsed"])
        if state is UnitState.WAITING:
            reason = "" if why in ("None", "") else f"queued: {why}"
        elif status == "FAILED":
            code = int(fields["exit_code"]) if fields["exit_code"].isdigit() else None  # a status of wait(2)
            reason = "failed" if code is None else describe_exit(-(code & 0x7F) or code >> 8)
        else:
            reason = _REASONS.get(status, "" if status in _STATES else f"in the unknown state {status}")
        if reason and nodes and state is not UnitState.WAITING:
            reason = f"{reason} ({nodes})"
        left, remaining = fields["TimeLeft"], 0.0
        if state is UnitState.RUNNING and left not in ("UNLIMITED", "NOT_SET", ""):
            remaining = max(MIN_REMAINING_SECONDS, seconds_of(left))  # a job past its limit shows INVALID
        return SeenUnit(state, age, reason, remaining)

    def cancel(self, config: SlurmConfig, unit_ids: Sequence[str]) -> list[str]:
        return super().cancel(config, [*self._clusters(config), *unit_ids])


class Pbs(BatchSystem):
    """PBS Professional and OpenPBS. Parses text output, because their JSON is invalid for some job variables."""

    title = "PBS"
    stop_by_hand = "cancel each with `qdel JOB`"
    stop_grace_seconds = 8.0  # kill_delay is 10 s by default
    unit_id = "${PBS_JOBID}"
    submits = "qsub"
    cancels = "qdel"
    job_id = r"^\s*(\d+\S*)\s*$"
    output_form = "UNIT.OU"
    _states = {  # noqa: RUF012 (a table)
        **dict.fromkeys("QHWT", UnitState.WAITING),
        **dict.fromkeys("RSUB", UnitState.RUNNING),
        "E": UnitState.STOPPING,
        **dict.fromkeys("FXM", UnitState.FAILED),
    }

    def submit(self, config: SlurmConfig, name: str, directory: str, _count: int, _nodes: int = 1) -> list[str]:
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

    def listing(self, _config: SlurmConfig, name: str) -> list[str]:
        # A server without job_history_enable rejects -x; with it, ended jobs are kept for two weeks.
        alive = f"alive=$(qselect -N {name}) || exit"
        ended = f"ended=$(qselect -x -s F -N {name} 2>/dev/null | tail -n {ENDED_LISTED})"
        return ["sh", "-c", f'{alive}; {ended}; [ -z "$alive$ended" ] || exec qstat ${{ended:+-x}} -f $alive $ended']

    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        jobs: dict[str, dict[str, str]] = {}
        attributes: dict[str, str] | None = None
        attribute = ""
        for line in output.splitlines():
            if found := re.match(r"Job Id: (\S+)", line):
                attributes = jobs[found[1]] = {}
            elif attributes is not None and line.startswith("\t"):  # continuation of a long value
                attributes[attribute] = attributes.get(attribute, "") + line[1:]
            elif attributes is not None and (found := re.match(r"    ([\w.]+) = (.*)", line)):
                attribute = found[1]
                attributes[attribute] = found[2]
        return {unit_id: self._job(job) for unit_id, job in jobs.items() if job.get("Job_Name") == name}

    def _job(self, job: Mapping[str, str]) -> SeenUnit:
        used = seconds_of(job.get("resources_used.walltime", ""))
        limit = seconds_of(job.get("Resource_List.walltime", ""))
        status = job.get("job_state", "")
        state = self._states.get(status, UnitState.PENDING)
        status_text = job.get("Exit_status", "0")
        code = int(status_text) if re.fullmatch(r"-?\d+", status_text) else 1
        comment = job.get("comment", "")
        reason = f"queued: {comment}" if state is UnitState.WAITING and comment else ""
        if status not in self._states:
            reason = f"in the unknown state {status!r}"
        if state is UnitState.FAILED:
            state = UnitState.STOPPED if code == 0 else UnitState.FAILED
            # A status above 256 means a signal; below 0, PBS itself ended the job.
            reason = comment or "ended by PBS" if code < 0 else describe_exit(256 - code if code > 256 else code)
        remaining = max(1.0, limit - used) if state is UnitState.RUNNING and limit else 0.0
        return SeenUnit(state, used, reason, remaining)


class Lsf(BatchSystem):
    """IBM Spectrum LSF 10, in which bjobs prints selected columns."""

    title = "LSF"
    stop_by_hand = "cancel each with `bkill JOB`"
    stop_grace_seconds = 8.0  # SIGINT, 10 s later SIGTERM, and 10 s later SIGKILL
    unit_id = "${LSB_JOBID}"
    submits = "bsub"
    cancels = "bkill"
    job_id = r"Job <(\d+)>"
    output_form = "lsf-UNIT.out"
    columns = ("job_name", "jobid", "stat", "exit_code", "run_time", "time_left", "pend_reason", "exit_reason")
    _states = {  # noqa: RUF012 (a table)
        **dict.fromkeys(("PEND", "PSUSP", "WAIT"), UnitState.WAITING),
        "PROV": UnitState.PENDING,
        "DONE": UnitState.STOPPED,
        **dict.fromkeys(("RUN", "USUSP", "SSUSP", "UNKWN"), UnitState.RUNNING),
        **dict.fromkeys(("EXIT", "ZOMBI"), UnitState.FAILED),
    }

    def submit(self, config: SlurmConfig, name: str, directory: str, _count: int, _nodes: int = 1) -> list[str]:
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
            *("-o", f"{directory}/lsf-%J.out", "-L", "/bin/sh", "-env", "none", "-cwd", directory),
            *(part for option, value in named.items() if value for part in (option, value)),
            *config.slurm_options,
        ]

    def listing(self, _config: SlurmConfig, name: str) -> list[str]:
        # Without jobs, bjobs writes to stderr, and fails in some releases.
        return ["bjobs", "-a", "-J", name, "-noheader", "-o", f"{' '.join(self.columns)} delimiter='|'"]

    def listed(self, output: str, name: str) -> dict[str, SeenUnit]:
        jobs = {}
        for line in output.splitlines():
            fields = line[line.find(f"{name}|") :].strip().split("|", len(self.columns) - 1)
            if fields[0] == name and len(fields) == len(self.columns) and fields[1].isdigit():
                jobs[fields[1]] = self._job(fields[2:])
        return jobs

    def _job(self, fields: Sequence[str]) -> SeenUnit:
        status, code, used, left, pending, why = fields
        state = self._states.get(status, UnitState.PENDING)
        reason = f"queued: {pending.strip('; ')}" if state is UnitState.WAITING and pending not in ("", "-") else ""
        if status not in self._states:
            reason = f"in the unknown state {status}"
        if state is UnitState.FAILED:
            number = int(code) if code.strip().isdigit() else None  # as reported by a shell
            ended = describe_exit(128 - number if number is not None and number > 128 else number)
            reason = why if why not in ("", "-") else ended
        hours = re.match(r"(\d+):(\d+)", left)
        remaining = 0.0
        if hours and state is UnitState.RUNNING:
            remaining = max(MIN_REMAINING_SECONDS, int(hours[1]) * HOUR + int(hours[2]) * MINUTE)
        ran = re.match(r"\d+", used)
        return SeenUnit(state, float(ran[0]) if ran else 0.0, reason, remaining)


SYSTEMS: Mapping[str, BatchSystem] = {"slurm": Slurm(), "pbs": Pbs(), "lsf": Lsf()}


def seconds_of(text: str) -> float:
    """Return the seconds of a duration: 75, 1:15, 0:01:15, or 2-00:00:00; 0 for words such as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)??(?:(\d+):)?(\d+)", text.strip())
    if found is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(days * DAY + hours * HOUR + minutes * MINUTE + seconds)


def clock(minutes: int) -> str:
    return f"{minutes // MINUTE:02}:{minutes % MINUTE:02}:00"
