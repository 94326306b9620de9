"""What the rules of the emulated Batch want done outside, and how long things take there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Times:
    """How long things take, in seconds. May be changed at any time, for what begins later."""

    submitted: float = 0.02
    pending: float = 0.02
    starting: float = 0.05
    changing: float = 0.05
    """Creation, update and deletion of queues and compute environments."""
    listing: float = 0.1
    """How long ListJobs does not show a new job."""
    stop: float = 30.0
    """From SIGTERM to SIGKILL."""
    notice: float = 120.0
    """From a spot notice to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container."""

    run_id: str
    job_id: str
    command: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to a container."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a container."""

    run_id: str


Command = Start | Terminate | Kill
