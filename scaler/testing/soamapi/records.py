"""What the grid keeps: sessions, tasks, slots, and how tasks have ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scaler.testing.soamapi.instance import Instance
from scaler.testing.soamapi.messages import SoamException

DEFAULT_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class Response:
    """How a task has ended: with its output, or an error. unreadable: it cannot be fetched, and this is why."""

    task_id: str
    output: bytes | None
    error: SoamException | None = None
    unreadable: str = ""


@dataclass(eq=False, slots=True)
class GridTask:
    """A task that has not ended."""

    task_id: str
    data: bytes
    deaths: int = 0
    slot: GridSlot | None = None
    """Where it runs."""
    interrupted: str = ""
    """Its process is being ended, and this is why; the task goes on elsewhere if it is reclaimed."""
    is_reclaimed: bool = False


@dataclass(eq=False, slots=True)
class GridSession:
    """A session that has not ended has all its tasks that have not."""

    session_id: str
    name: str
    priority: int
    on_response: Callable[[Response], None]
    on_exception: Callable[[SoamException], None]
    tasks: dict[str, GridTask] = field(default_factory=dict)
    count: int = 0
    is_suspended: bool = False
    ended: str = ""

    def name_of(self, task: GridTask) -> str:
        """Return how the product's texts call a task."""
        return f"Task <{task.task_id}> of session <{self.session_id}>"


@dataclass(eq=False, slots=True)
class GridSlot:
    """Where one service process runs."""

    instance: Instance | None = None
