"""Interface of the part that knows which workers prepare an environment. Pure."""

from __future__ import annotations

from scaler.scheduler.core.state import Task, Worker


class Environments:
    """Which workers prepare which environments, of tasks with an environment. Without an extension, these tasks are
    refused."""

    refusal = "tasks with an environment need the extension 'environment', which this scheduler lacks"
    """Why tasks with an environment are refused, or an empty string."""

    def prepares(self, _worker: Worker, _environment: bytes, /) -> bool:
        """Return whether tasks with an environment must wait for a worker."""
        return False

    def left(self, _worker: Worker, /) -> None:
        """Forget a worker."""

    def why_waits(self, _task: Task, /) -> str:
        """Return a text on the environment of a ready task, or an empty string."""
        return ""
