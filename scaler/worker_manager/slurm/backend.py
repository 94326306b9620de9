"""The backend of the type slurm. The queue is the only record: one listing by name has all jobs of a manager."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import ScalerError, UsageError
from scaler.grammar import counted
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import ENDED, BackendError, Capacity, most_units, owner_digest, units_credential
from scaler.worker_manager.containers import worker_document
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.commands import MAX_TEXT, Commands, working_directory
from scaler.worker_manager.slurm.systems import SYSTEMS, BatchSystem

CANCELLED_AT_ONCE = 500  # jobs per command, whose length is limited
OUTPUTS_READ = 3  # failed jobs per listing whose last line of output is read
_WRONG = re.compile(
    "invalid|unrecogni|unknown|no such|not found|not permitted|not a valid|more processors|exceeds|denied|"
    "node configuration is not available",
    re.IGNORECASE,
)
"""Permanent errors in a job's settings. Other errors may be temporary, such as nodes that are down."""
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
"""The beginning of a job's script. The site's profile defines `module`; a profile that exits its shell is skipped. srun
passes no environment on while SLURM_EXPORT_ENV is set."""

_log = logging.getLogger(__name__)


class SlurmBackend(PolledBackend):
    """Units are jobs. Raises UsageError for settings with which no job would be accepted, as far as known."""

    def __init__(self, config: SlurmConfig) -> None:
        cpus, memory_bytes = config.slurm_cpus, config.memory_mebibytes * 1024**2
        units = most_units(config.max_task_concurrency, cpus)
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
        self._directory = ""  # absolute path of the log directory, once it exists and has the credential
        self._jobs: Mapping[str, SeenUnit] = {}
        self._ignored: tuple[str, ...] = ()  # listed entries that are no job of this manager, or in an unknown state
        self._is_unanswered = False  # an unanswered submission may have been accepted
        self._check()

    def start_some(self, count: int) -> list[str]:
        if not self._directory:
            self._prepare()
        count = min(count, self._system.most_at_once)
        command = self._system.submit(self._config, self._name, self._directory, count)
        try:
            output = self._commands.run(command, self._script)
        except BackendError as error:
            self._is_unanswered = error.is_temporary
            error.fewer_may_start = count > 1 and not error.is_temporary
            raise
        try:
            unit_ids = self._system.submitted(output, count)
        except ValueError as error:
            self._is_unanswered = True
            raise BackendError(str(error)) from error
        for unit_id in unit_ids:
            # A controller that crashed may reuse ids that it had not saved.
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
        outcomes: dict[str, Stopped | BackendError] = {}
        for at in range(0, len(unit_ids), CANCELLED_AT_ONCE):
            some = unit_ids[at : at + CANCELLED_AT_ONCE]
            try:
                self._commands.run(self._system.cancel(self._config, some))
            except BackendError as error:
                if error.is_temporary:
                    return outcomes | dict.fromkeys(unit_ids[at:], error)
                outcomes |= super().stop_some(some)  # each may have failed for its own reason
            else:
                outcomes |= dict.fromkeys(some, "stopping")
        return outcomes

    def stop_one(self, unit_id: str) -> Stopped:
        try:
            self._commands.run(self._system.cancel(self._config, [unit_id]))
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
        failed = [unit_id for unit_id, job in seen.items() if job.state is UnitState.FAILED and unit_id in self._alive]
        for unit_id in failed:
            if self._alive[unit_id].is_stopping or unit_id in self._unstopped:
                seen[unit_id] = replace(seen[unit_id], state=UnitState.STOPPED, reason="stopped")
            elif seen[unit_id].reason.startswith("exit code") and failed.index(unit_id) < OUTPUTS_READ:
                job = seen[unit_id]
                seen[unit_id] = replace(job, reason=f"{job.reason}: {self._last_line(unit_id)}")
        return seen

    def disconnect(self) -> None:
        """Remove the credential unless jobs need it. Stopping jobs have read it, or never will."""
        if self._directory and all(unit.is_stopping for unit in self._alive.values()):
            try:
                self._commands.shell(f"rm -f {quote(f'{self._directory}/{self._credential_name}')}")
            except BackendError as error:
                _log.warning("the credential of the jobs may be left in %s: %s", self._directory, error)

    @property
    def _log_directory(self) -> str:
        given = self._config.slurm_log_directory
        home = "${HOME:?is not set: make slurm_log_directory an absolute path}"
        return f'"{home}"/{quote(given[2:])}' if given.startswith("~/") else quote(given)

    @property
    def _credential_name(self) -> str:
        return f"{self._name}.credential"

    def _check(self) -> None:
        submit = self._system.submit(self._config, self._name, self._config.slurm_log_directory, 1)
        try:
            self._commands.run(
                self._system.dry_run(submit) or self._system.listing(self._config, self._name), "#!/bin/sh\n"
            )
        except BackendError as error:
            if error.is_temporary or not _WRONG.search(str(error)):
                _log.warning("cannot tell whether %s will accept jobs: %s", self._service_name, error)
                return
            raise UsageError(
                f"{self._service_name} does not accept jobs of {self._config.worker_manager_id}: {error}; "
                "change the keys slurm_... of this worker manager"
            ) from error

    def _prepare(self) -> None:
        try:
            credential = units_credential(self._config)
        except ScalerError as error:
            raise BackendError(str(error)) from error
        path, name = self._log_directory, quote(self._credential_name)
        keep = f"rm -f {name}.new && cat >{name}.new && mv {name}.new {name}" if credential else ":"
        directory = self._commands.shell(
            f"umask 077 && mkdir -p {path} && cd {path} && {keep} && pwd", credential
        ).strip()
        # The output of a job is its log, because a node does not have this machine's files.
        document = worker_document(
            self._config,
            self._config.slurm_cpus,
            unit_id_from=f"env:{UNIT_ID_VARIABLE}",
            stop_grace_seconds=self._system.stop_grace_seconds,
        )
        file = f"{directory}/{self._credential_name}" if credential else ""
        self._script = job_script(self._config, self._system, document, file, [*working_directory(), directory])
        self._directory = directory

    def _listed(self) -> dict[str, SeenUnit]:
        output = self._commands.run(self._system.listing(self._config, self._name))
        jobs, ignored = self._system.listed(output, self._name)
        if len(ignored) > len(self._ignored):
            _log.warning(
                "ignored in the list of jobs of %s: %s, such as %r",
                self._service_name,
                counted(len(ignored), "line"),
                ignored[0][:MAX_TEXT],
            )
        self._ignored = ignored
        return jobs

    def _last_line(self, unit_id: str) -> str:
        name = self._system.output_form.replace("UNIT", unit_id)
        try:
            line = self._commands.shell(f"tail -n 1 {self._log_directory}/{quote(name)}").strip()
        except BackendError:
            line = ""
        return line[:MAX_TEXT] or f"see {self._config.slurm_log_directory}/{name}"


def job_name(config: SlurmConfig) -> str:
    return f"scaler-{owner_digest(config, 8)}"


def job_script(
    config: SlurmConfig, system: BatchSystem, document: str, credential_file: str, directories: Sequence[str]
) -> str:
    """Return the script of all jobs, without secrets. directories: a job runs in the first one that its node has."""
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
        # The agent replaces the shell, so that it gets the signals of the batch system.
        f"exec {quote(config.slurm_python)} -P -m scaler.worker\n"
    )
