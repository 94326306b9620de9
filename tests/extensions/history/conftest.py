"""A cluster with a history, and a client."""

from __future__ import annotations

import pytest

from tests.extensions.history.recorded import Recorded


@pytest.fixture
def cluster() -> Recorded:
    return Recorded()


@pytest.fixture
def client(cluster: Recorded) -> str:
    return cluster.client()
