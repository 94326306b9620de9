"""The initial state of a scenario of the agent's core."""

from __future__ import annotations

import pytest

from tests.unit.worker.story import Story


@pytest.fixture
def story() -> Story:
    return Story()
