"""`pytest tests/scenarios --rewrite` rewrites the answers of all stories. Review the diff before keeping it."""

from __future__ import annotations

import pytest


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether answers are rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite"))
