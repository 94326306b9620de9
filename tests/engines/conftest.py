"""Shared by tests of engines: an account at AWS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler.testing.aws import AwsEmulator


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsEmulator]:
    """The emulator, which boto3 finds by the environment of this process."""
    with AwsEmulator() as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        yield emulator
