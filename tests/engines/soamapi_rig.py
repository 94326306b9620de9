"""The fake soamapi in this process and its children."""

from __future__ import annotations

import importlib
import sys

import pytest

from scaler.testing.soamapi import StandIn, api

DEADLINE_SECONDS = 30.0


def use(settings: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import soamapi` find a fake with these settings, in this process and its children."""
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "soamapi", importlib.import_module("scaler.testing.soamapi.on_path.soamapi"))
    api.reset(settings)
