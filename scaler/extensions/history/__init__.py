"""The history: figures per minute, decisions, incidents, and failures across restarts, and recently ended tasks.

core changes -> core.py: records -> files.py: state_directory -> HistoryFound, the answer to FindHistory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Seconds
from scaler.plugins import Extension


@dataclass(frozen=True, kw_only=True)
class HistorySettings(SettingsModel):
    """History."""

    history_retention_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 2_592_000.0
    """How long state_directory keeps the history, within 256 MiB. Without state_directory, the last hour is kept in
    memory."""


EXTENSION = Extension(
    "history",
    questions="scaler.extensions.history.client:HistoryCalls",
    settings="scaler.extensions.history:HistorySettings",
    scheduler="scaler.extensions.history.core:History",
    performer="scaler.extensions.history.files:history_files",
)
