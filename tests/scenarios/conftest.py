"""`pytest tests/scenarios --rewrite` rewrites the answers of all stories: read the difference before keeping it."""

from __future__ import annotations

import pytest


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True when answers are to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite"))
