"""Commands of a batch system, run locally or through `slurm_prefix`, and their output, which marks separate from
messages of shell profiles. Commands get no variables of an allocation, whose limits all jobs would inherit."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaler.worker_manager.backend import BackendError

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
"""Location of the batch system and the user's defaults, which no allocation sets."""


class Commands:
    """Runs commands. prefix: a command whose last argument is a shell line; empty to run locally."""

    def __init__(self, prefix: str) -> None:
        self._prefix = shlex.split(prefix)
        self._environment = clean_environment(os.environ)

    def shell(self, line: str, given: str = "") -> str:
        return self.run(["sh", "-c", line], given)

    def run(self, command: Sequence[str], given: str = "") -> str:
        """Run a command with this input, and return its output. Raises BackendError, temporary if it may have run."""
        marked = ["sh", "-c", MARKED, "sh", *command]
        whole = [*self._prefix, shlex.join(marked)] if self._prefix else marked
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
            raise BackendError(f"{command[0]} was not run by {whole[0]}, which printed: {printed}")
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
    found["LC_ALL"] = "C"  # messages are searched for words
    found.setdefault("PATH", os.defpath)
    if not found.get("HOME"):
        try:
            found["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a container may run with a uid without an entry
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
