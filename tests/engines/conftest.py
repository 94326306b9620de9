"""Fixtures for tests of engines: an AWS account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler.testing.aws import AwsEmulator


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsEmulator]:
    """The emulator, which boto3 finds through this process's environment."""
    with AwsEmulator() as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        yield emulator
