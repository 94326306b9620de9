"""The settings of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel


@dataclass(frozen=True, kw_only=True)
class AuditSettings(SettingsModel):
    """Audit log."""

    audit_path: Annotated[str, Setting(default_text="none: the latest records are kept in memory", metavar="PATH")] = ""
    """File to which the audit log is appended as JSON lines: connections, refusals, submitted and cancelled tasks. Only
    the owner can read the file. At 64 MiB, it is renamed to PATH.1.
    """
