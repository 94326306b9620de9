"""Killing tasks with the product's own command, for releases whose library cannot.

The command uses the login of `soamlogon`: it takes a password on its command line only, where everybody could see it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from scaler.worker.executor import ExecutorError

COMMAND = "soamcontrol"
COMMAND_SECONDS = 10.0
TASKS_AT_ONCE = 500
"""Task ids on one command line."""


def kill_tasks(application: str, session_id: object, task_ids: Sequence[object]) -> None:
    """End tasks of a session. Raises ExecutorError when the command is missing, fails, or takes too long."""
    for first in range(0, len(task_ids), TASKS_AT_ONCE):
        ids = ",".join(map(str, task_ids[first : first + TASKS_AT_ONCE]))
        try:
            done = subprocess.run(
                [COMMAND, "task", "kill", f"{application}:{session_id}:{ids}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise ExecutorError(
                f"this soamapi cannot kill tasks, and {COMMAND} is not in PATH: source the profile of Symphony's client"
            ) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExecutorError(f"{COMMAND} task kill failed: {error}") from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise ExecutorError(f"{COMMAND} task kill ended with exit code {done.returncode}: {said[:500]}")
