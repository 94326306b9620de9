"""Idle workers whose manager is away, which nothing else would stop. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scaler.scheduler.core.state import Worker


class Orphans:
    """Tracks how long the managers of connected workers have been away."""

    def __init__(self) -> None:
        self._away_since: dict[str, float] = {}

    def due(self, workers: Iterable[Worker], present: Collection[str], now: float) -> list[Worker]:
        """Return workers idle and without a `present` manager for their `death_timeout_seconds`. O(workers)."""
        found, before, self._away_since = [], self._away_since, {}
        for worker in workers:
            manager_id, patience = worker.details.manager_id, worker.details.death_timeout_seconds
            if not manager_id or manager_id in present:
                continue
            away_since = self._away_since[manager_id] = before.get(manager_id, now)
            is_idle = not worker.tasks and not worker.draining
            if is_idle and patience and now - max(away_since, worker.idle_since) >= patience:
                found.append(worker)
        return found
