"""A story of the agent's core as it begins."""

from __future__ import annotations

import pytest

from tests.unit.worker.story import Story


@pytest.fixture
def story() -> Story:
    return Story()
