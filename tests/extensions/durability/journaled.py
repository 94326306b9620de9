"""A part of durability that journals, without a state_directory."""

from __future__ import annotations

from scaler.extensions.durability import DurabilitySettings
from scaler.extensions.durability.core import DurabilityCore
from scaler.extensions.interface import SchedulerPart


class Journaled(SchedulerPart):
    def __init__(self, *, is_journaled: bool = True) -> None:
        self._core = DurabilityCore(DurabilitySettings.session_retention_seconds, is_journaled=is_journaled)

    def durability(self) -> DurabilityCore:
        return self._core
