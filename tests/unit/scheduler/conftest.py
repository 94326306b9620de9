"""A cluster, a client, and a worker `w` that has joined the cluster."""

from __future__ import annotations

import pytest

from tests.unit.scheduler.driver import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def client(cluster: Cluster) -> str:
    return cluster.client()


@pytest.fixture
def worker(cluster: Cluster) -> str:
    return cluster.worker("w")
