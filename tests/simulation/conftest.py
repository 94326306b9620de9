"""Planted faults: a test with the argument `fault_name` runs for each of its module's FAULTS, or for the first."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault_name" in metafunc.fixturenames:
        names = list(metafunc.module.FAULTS)
        metafunc.parametrize("fault_name", names if metafunc.config.getoption("--soak") else names[:1])
