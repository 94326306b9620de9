"""The script of jobs: their environment, their directory, and the worker that takes the place of their shell."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.systems import BatchSystem

UNIT_ID_VARIABLE = "SCALER_UNIT_ID"
PROFILE = """\
[ "$HOME" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME="${HOME:-/}" PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"
[ "$( (. /etc/profile >/dev/null 2>&1 </dev/null; echo read) )" = read ] && . /etc/profile >/dev/null 2>&1 </dev/null
unset SLURM_EXPORT_ENV
"""
"""The beginning of a job. The site's profile defines `module`; a profile that ends its shell is skipped. srun passes no
environment on while SLURM_EXPORT_ENV is set."""


def job_script(
    config: SlurmConfig, system: BatchSystem, document: str, credential_file: str, directories: Sequence[str]
) -> str:
    """Return the script of all jobs of a manager. It has no secret: users may be shown the scripts of others.

    directories: a job runs in the first of them that its node has.
    """
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
        # The agent takes the shell's place, so that it gets the signals of the batch system.
        f"exec {quote(config.slurm_python)} -P -m scaler.worker\n"
    )
