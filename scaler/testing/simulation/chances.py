"""How rough the simulated world is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chances:
    """Rates are events per simulated second in the whole cluster; the others are probabilities, or seconds."""

    delay_seconds: float = 0.001
    """Mean of the exponentially distributed delay of a message."""
    breaks_per_second: float = 2.0
    """Connections that break and come back; what was in flight is lost in part."""
    repeats: float = 0.02
    """Probability that a message is delivered twice."""
    worker_crashes_per_second: float = 0.5
    worker_freezes_per_second: float = 0.1
    freeze_seconds: float = 90.0
    """Longer than the lease: the worker is given up, and comes back with late results."""
    client_crashes_per_second: float = 0.02
    """Clients that end in the middle; another one takes over what they left."""
    client_freezes_per_second: float = 0.01
    """Clients that are given up, come back, and say again what they wait for."""
    processor_deaths: float = 0.002
    """Probability that a task's process dies."""
    exceptions: float = 0.01
    stored_results: float = 0.05
    cancels: float = 0.02
    dependencies: float = 0.2
    """Probability that a task depends on earlier ones."""
    once: float = 0.05
    """Probability that a group may be started only once (retries=0)."""
    long_tasks: float = 0.02


CALM = Chances(
    breaks_per_second=0,
    repeats=0,
    worker_crashes_per_second=0,
    worker_freezes_per_second=0,
    client_crashes_per_second=0,
    client_freezes_per_second=0,
    processor_deaths=0,
    cancels=0,
    exceptions=0,
)
"""Nothing goes wrong: for measuring."""
