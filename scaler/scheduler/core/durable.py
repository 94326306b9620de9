"""What the scheduler keeps of a durable session beside its client; `sessions.py` has the rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Label:
    """What a session knows of a task beside its state: its function's name, and the last attempt once it has ended."""

    key: bytes = b""
    tag: bytes = b""
    function: str = ""
    attempt: int = 0


@dataclass(slots=True, eq=False)
class DurableSession:
    """The durable part of a client. used_at: when a client left it or a task of it ended, in the core's own time."""

    name: str
    used_at: float
    client: str = ""
    """Host and pid of the client that uses it, or used it last."""
    labels: dict[bytes, Label] = field(default_factory=dict)
    """Of its tasks, in the order of their submission."""

    def submitted(self, task: bytes, function: str) -> int:
        """Note a new task. Returns the last attempt of an earlier run, after which its attempts are counted."""
        label = self.labels.setdefault(task, Label())
        label.function = function
        return label.attempt

    def ended(self, task: bytes, attempt: int, now: float) -> None:
        """Note that a task ended with this attempt."""
        self.labels[task].attempt = attempt
        self.used_at = now
