"""Durability: recovery of a restarted scheduler, its journal in `state_directory`, durable sessions, and cached calls.

core changes -> core.py: record -> steps.py: the journal on disk, then the step's other commands
journal -> ledger.py: sum of the changes -> core.py, recovery.py, sessions.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Seconds
from scaler.plugins import Extension


@dataclass(frozen=True, kw_only=True)
class DurabilitySettings(SettingsModel):
    """Durable sessions."""

    session_retention_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 604_800.0
    """How long to keep an unused durable session after its last task has ended."""


EXTENSION = Extension(
    "durability",
    settings="scaler.extensions.durability:DurabilitySettings",
    scheduler="scaler.extensions.durability.core:DurabilityPart",
    client="scaler.extensions.durability.cached:CachedCalls",
    questions="scaler.extensions.durability.client:SessionCalls",
    own={"session": "scaler.extensions.durability.client:NamedSession"},
    keeper="scaler.extensions.durability.steps:keep_state",
)
