"""`pytest tests/scenarios --rewrite` writes the answers of all stories anew: read the difference before keeping it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the answers of the stories anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True when answers are to be written anew instead of compared."""
    # This file is read too late for its option to exist when all tests are run.
    return bool(request.config.getoption("--rewrite", default=False))
