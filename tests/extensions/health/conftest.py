"""A cluster with health checks of its workers."""

from __future__ import annotations

import pytest

from scaler.extensions.health.core import WorkerHealth
from tests.unit.scheduler.driver import Cluster


class Judged(Cluster):
    parts = (WorkerHealth,)


@pytest.fixture
def cluster() -> Cluster:
    return Judged()
