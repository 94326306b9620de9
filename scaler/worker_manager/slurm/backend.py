"""The backend of the type slurm. The queue is the only record: one listing by name contains all of a manager's jobs.

The commands of the batch system run locally or through `slurm_prefix`. They run without an allocation's variables,
because jobs would inherit its limits. Marks separate their output from messages of shell profiles."""

from __future__ import annotations

import logging
import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import join, quote, split

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import ScalerError
from scaler.grammar import counted
from scaler.protocol.messages import UnitState
from scaler.worker_manager import backend as frame
from scaler.worker_manager.backend import ENDED, BackendError, Capacity
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.systems import SYSTEMS, BatchSystem

COMMAND_SECONDS = 12.0
"""Above Slurm's default MessageTimeout of 10 s. A stopping manager must have time for two commands."""
MAX_TEXT = 300
NOT_FOUND = 127
SSH_FAILED = 255
MARK = "-- scaler --"
MARKED = f"echo; echo '{MARK}'; \"$@\"; code=$?; echo; echo '{MARK}'; exit $code"
"""One line without `!`, which csh expands even in quotes."""
_AWAY = re.compile(
    "unable to contact|unable to connect|cannot connect|connect(ion)? (failure|refused|reset|timed out)|timed out|"
    "socket error|zero bytes|lsf is down|batch daemon|not responding|try(ing)? (again|later)|temporarily",
    re.IGNORECASE,
)
"""The batch system, or the connection to it, is temporarily unavailable."""
_OF_A_JOB = re.compile("(SCALER|SLURM|SLURMD|SBATCH|SQUEUE|SCANCEL|SRUN|SALLOC|SPANK|PMI|PMIX|PBS)_")
_KEPT = re.compile(
    "SLURM_(CONF|JWT|SACK).*|SBATCH_(ACCOUNT|PARTITION|QOS|RESERVATION)|PBS_(CONF_FILE|SERVER|DEFAULT|EXEC)"
)
"""Variables with the batch system's location and the user's defaults, which no allocation sets."""
CANCELLED_AT_ONCE = 500  # jobs per command, because a command's length is limited
LEFT_SECONDS = 60.0  # a worker that is disconnected for this long will not return
OUTPUTS_READ = 3  # maximum number of failed jobs per listing whose last output line is read
_ENDED = re.compile(
    "invalid job id|already|has finished|is finished|unknown job|no matching job|not found", re.IGNORECASE
)

UNIT_ID_VARIABLE = "SCALER_UNIT_ID"
PROFILE = """\
[ "$HOME" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME="${HOME:-/}" PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"
[ "$( (. /etc/profile >/dev/null 2>&1 </dev/null; echo read) )" = read ] && . /etc/profile >/dev/null 2>&1 </dev/null
unset SLURM_EXPORT_ENV
"""
"""The start of a job's script. Reads the site's profile, which defines `module`, unless the profile exits its shell.
srun passes no environment if SLURM_EXPORT_ENV is set."""

_log = logging.getLogger(__name__)


class Commands:
    """Runs commands. prefix: a command that runs its last argument, a shell line; empty: run locally."""

    def __init__(self, prefix: str) -> None:
        self._prefix = split(prefix)
        self._environment = clean_environment(os.environ)

    def shell(self, line: str, given: str = "") -> str:
        return self.run(["sh", "-c", line], given)

    def run(self, command: Sequence[str], given: str = "") -> str:
        """Run a command with this input, and return its output. Raises BackendError, which is temporary if the command
        may have run."""
        marked = ["sh", "-c", MARKED, "sh", *command]
        whole = [*self._prefix, join(marked)] if self._prefix else marked
        try:
            process = subprocess.Popen(
                whole,
                env=self._environment,
                cwd=None if working_directory() else "/",  # sbatch fails in a removed directory
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C must not interrupt a submission
            )
        except OSError as error:
            raise BackendError(f"cannot run {whole[0]}: not found or {error.strerror}") from error
        with process:
            try:
                output, errors = process.communicate(given, COMMAND_SECONDS)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)  # including children of a slurm_prefix script, such as ssh
                printed = _one_line(_text(error.stderr), _text(error.output))
                raise BackendError(
                    f"{command[0]} did not answer within {COMMAND_SECONDS:g} s, and "
                    + (f"printed: {printed}" if printed else "printed nothing"),
                    is_temporary=True,
                ) from None
        if process.returncode:
            raise self._failure(command[0], process.returncode, output, errors)
        before, mark, rest = output.partition(f"\n{MARK}\n")
        answer, end, _ = rest.rpartition(f"\n{MARK}\n")
        if not (mark and end):
            printed = _one_line(before, rest) or "nothing"
            raise BackendError(f"{whole[0]} did not run {command[0]}, but printed: {printed}")
        return answer

    def _failure(self, name: str, code: int, output: str, errors: str) -> BackendError:
        printed = _one_line(output)
        text = _one_line(errors) or f"exit code {code}" + (f", after it printed: {printed}" if printed else "")
        missing = re.search(r"(\S+): (?:command )?not found", text)
        if code == NOT_FOUND and missing is not None:
            return BackendError(f"cannot run {missing[1]}: not found")
        is_away = _AWAY.search(text) is not None or (bool(self._prefix) and code == SSH_FAILED)
        return BackendError(text if name in text or name == "sh" else f"{name}: {text}", is_temporary=is_away)


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in variables.items() if not _OF_A_JOB.match(name) or _KEPT.fullmatch(name)}
    found["LC_ALL"] = "C"  # English, because messages are searched for English words
    found.setdefault("PATH", os.defpath)
    if not found.get("HOME"):
        try:
            found["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a container may run with a uid that has no passwd entry
            found.pop("HOME", None)
    return found


def working_directory() -> list[str]:
    try:
        return [str(Path.cwd())]
    except OSError:
        return []


def _one_line(*texts: str) -> str:
    lines = (line.strip() for text in texts for line in text.splitlines())
    return "; ".join(line for line in lines if line and line != MARK)[:MAX_TEXT]


def _text(printed: str | bytes | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""


class SlurmBackend(PolledBackend):
    """Units are jobs."""

    def __init__(self, config: SlurmConfig) -> None:
        cpus, memory_bytes = config.slurm_cpus, config.memory_mebibytes * 1024**2
        units = frame.most_units(config.max_task_concurrency, cpus)
        self._system = SYSTEMS[config.slurm_system]
        super().__init__(
            service=self._system.title,
            noun="jobs",
            stop_by_hand=self._system.stop_by_hand,
            capacity=Capacity.of_units(cpus, units, unit_memory_bytes=memory_bytes, backlog=config.slurm_backlog),
            heartbeat_seconds=config.heartbeat_interval_seconds,
            first_state=UnitState.WAITING,
        )
        self._config = config
        self._name = job_name(config)
        self._commands = Commands(config.slurm_prefix)
        self._script = ""
        self._directory = ""  # absolute path of the log directory, once it exists and contains the credential
        self._jobs: Mapping[str, SeenUnit] = {}
        self._left_at: dict[str, float] = {}
        self._is_unanswered = False  # an unanswered submission may have been accepted

    def start_some(self, count: int) -> list[str]:
        if not self._directory:
            self._prepare()
        nodes = self.together if 1 < self.together <= min(count, self._system.most_nodes) else 1
        self.together = 0  # a later job would not be for the same gang
        count = min(count, self._system.most_at_once) if nodes == 1 else 1
        command = self._system.submit(self._config, self._name, self._directory, count, nodes)
        try:
            output = self._commands.run(command, self._script if nodes == 1 else self._script_for(nodes))
        except BackendError as error:
            self._is_unanswered = error.is_temporary
            if nodes > 1 and not error.is_temporary:
                text = "starting a job for each unit, because a job with %s was refused: %s"
                _log.info(text, counted(nodes, "node"), error)
                return self.start_some(nodes)
            error.fewer_may_start = count > 1 and not error.is_temporary
            raise
        try:
            unit_ids = self._system.submitted(output, count, nodes)
        except ValueError as error:
            self._is_unanswered = True
            raise BackendError(str(error)) from error
        for unit_id in unit_ids:
            # After a crash, a controller may reuse ids that it had not saved.
            self._ended.pop(unit_id, None)
            self._alive.pop(unit_id, None)
        return unit_ids

    def started_unanswered(self) -> list[str]:
        if not self._is_unanswered:
            return []
        found = [unit_id for unit_id, job in self._listed().items() if job.state not in ENDED]
        self._is_unanswered = False
        return found

    def stop_some(self, unit_ids: Sequence[str]) -> Mapping[str, Stopped | BackendError]:
        """Cancel jobs. A job with several units is cancelled with its last unit; the workers of other units exit by
        themselves."""
        staying = {
            self._system.job_of(unit_id)
            for unit_id, unit in self._alive.items()
            if not unit.is_stopping and unit.state is not UnitState.STOPPING and unit_id not in unit_ids
        }
        outcomes: dict[str, Stopped | BackendError] = {}
        stopped = [unit_id for unit_id in unit_ids if self._system.job_of(unit_id) not in staying]
        outcomes |= dict.fromkeys(set(unit_ids) - set(stopped), "stopping")
        for at in range(0, len(stopped), CANCELLED_AT_ONCE):
            some = stopped[at : at + CANCELLED_AT_ONCE]
            jobs = list(dict.fromkeys(map(self._system.job_of, some)))
            try:
                self._commands.run(self._system.cancel(self._config, jobs))
            except BackendError as error:
                if error.is_temporary:
                    return outcomes | dict.fromkeys(stopped[at:], error)
                outcomes |= super().stop_some(some)  # each may have failed for a different reason
            else:
                outcomes |= dict.fromkeys(some, "stopping")
        return outcomes

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            self._commands.run(self._system.cancel(self._config, [self._system.job_of(unit_id)]))
        except BackendError as error:
            if error.is_temporary or not _ENDED.search(str(error)):
                raise
        return "stopping"  # an ended job is listed as ended, or not at all

    def list_ids(self, *, search: bool) -> list[str]:
        del search
        self._jobs = self._listed()
        return list(self._jobs)

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        seen = {unit_id: self._jobs[unit_id] for unit_id in unit_ids if unit_id in self._jobs}
        self._note_left(seen)
        failed = [unit_id for unit_id, job in seen.items() if job.state is UnitState.FAILED and unit_id in self._alive]
        for unit_id in failed:
            if self._alive[unit_id].is_stopping or unit_id in self._unstopped:
                seen[unit_id] = replace(seen[unit_id], state=UnitState.STOPPED, reason="stopped")
            elif seen[unit_id].reason.startswith("exit code") and failed.index(unit_id) < OUTPUTS_READ:
                job = seen[unit_id]
                seen[unit_id] = replace(job, reason=f"{job.reason}: {self._last_line(unit_id)}")
        return seen

    def _note_left(self, seen: dict[str, SeenUnit]) -> None:
        """Mark units as stopping if their worker will not return to a job that still runs for other units."""
        if self.connected is None:
            return
        now, before = time.monotonic(), self._left_at
        gone = (
            unit_id
            for unit_id, job in seen.items()
            if self._system.job_of(unit_id) != unit_id and job.state is UnitState.RUNNING
            if unit_id in self._alive and self._alive[unit_id].has_joined and unit_id not in self.connected
        )
        self._left_at = {unit_id: before.get(unit_id, now) for unit_id in gone}
        for unit_id, left_at in self._left_at.items():
            if now - left_at >= LEFT_SECONDS:
                reason = "its worker has ended; its job runs until all its workers have ended"
                seen[unit_id] = replace(seen[unit_id], state=UnitState.STOPPING, reason=reason)

    def disconnect(self) -> None:
        """Remove the credential unless jobs need it. Stopping jobs have read it or never will."""
        if self._directory and all(unit.is_stopping for unit in self._alive.values()):
            try:
                self._commands.shell(f"rm -f {quote(f'{self._directory}/{self._credential_name}')}")
            except BackendError as error:
                _log.warning("the jobs' credential may remain in %s: %s", self._directory, error)

    @property
    def _log_directory(self) -> str:
        given = self._config.slurm_log_directory
        home = "${HOME:?is not set: make slurm_log_directory an absolute path}"
        return f'"{home}"/{quote(given[2:])}' if given.startswith("~/") else quote(given)

    @property
    def _credential_name(self) -> str:
        return f"{self._name}.credential"

    def _prepare(self) -> None:
        try:
            credential = frame.units_credential(self._config)
        except ScalerError as error:
            raise BackendError(str(error)) from error
        path, name = self._log_directory, quote(self._credential_name)
        keep = f"rm -f {name}.new && cat >{name}.new && mv {name}.new {name}" if credential else ":"
        directory = self._commands.shell(
            f"umask 077 && mkdir -p {path} && cd {path} && {keep} && pwd", credential
        ).strip()
        # Jobs log to their output, because this machine's log files do not exist on nodes.
        document = frame.worker_document(
            self._config,
            self._config.slurm_cpus,
            unit_id_from=f"env:{UNIT_ID_VARIABLE}",
            stop_grace_seconds=self._system.stop_grace_seconds,
        )
        file = f"{directory}/{self._credential_name}" if credential else ""
        self._script = job_script(self._config, self._system, document, file, [*working_directory(), directory])
        self._directory = directory

    def _script_for(self, nodes: int) -> str:
        """Return the script of a job that runs a unit on each of several nodes. If one unit fails, all end."""
        output = f"--output={quote(self._directory)}/slurm-%j.%t.out"
        step = f"srun --nodes={nodes} --ntasks={nodes} --cpus-per-task={self._config.slurm_cpus} --mpi=none {output}"
        script = quote(f"SCALER_RANK=$SLURM_PROCID\n{self._script}")
        return f"#!/bin/sh\n{PROFILE}exec {step} --kill-on-bad-exit=1 sh -c {script}\n"

    def _listed(self) -> dict[str, SeenUnit]:
        return self._system.listed(self._commands.run(self._system.listing(self._config, self._name)), self._name)

    def _last_line(self, unit_id: str) -> str:
        name = self._system.output_form.replace("UNIT", unit_id)
        try:
            line = self._commands.shell(f"tail -n 1 {self._log_directory}/{quote(name)}").strip()
        except BackendError:
            line = ""
        return line[:MAX_TEXT] or f"see {self._config.slurm_log_directory}/{name}"


def job_name(config: SlurmConfig) -> str:
    return f"scaler-{frame.owner_digest(config, 8)}"


def job_script(
    config: SlurmConfig, system: BatchSystem, document: str, credential_file: str, directories: Sequence[str]
) -> str:
    """Return the script for all jobs, without secrets. directories: a job runs in the first that exists on its node."""
    credential = (
        f"exec 9<{quote(credential_file)} || exit 1\nexport SCALER_CREDENTIAL_FD=9\n" if credential_file else ""
    )
    return (
        "#!/bin/sh\n"
        f"{PROFILE}"
        f"{' || '.join(f'cd {quote(each)}' for each in directories)} || exit\n"
        f"{config.slurm_setup}\n"
        f'export {UNIT_ID_VARIABLE}="{system.unit_id}"\n'
        f"export {WORKER_CONFIG_VARIABLE}={quote(document)}\n"
        f"{credential}"
        # The agent replaces the shell, so that it gets the batch system's signals.
        f"exec {quote(config.slurm_python)} -P -m scaler.worker\n"
    )
