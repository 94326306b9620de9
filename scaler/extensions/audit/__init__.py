"""The audit log.

core changes -> core.py: records, with frequent events counted -> the `audit` table, and file.py: audit_path
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.plugins import Extension, FoundTable


@dataclass(frozen=True, kw_only=True)
class AuditSettings(SettingsModel):
    """Audit log."""

    audit_path: Annotated[str, Setting(default_text="none: the latest records are kept in memory", metavar="PATH")] = ""
    """Audit log file (JSON lines): connections, refusals, submitted and cancelled tasks. Only the owner can read the
    file. At 64 MiB, the file is renamed to PATH.1."""


EXTENSION = Extension(
    "audit",
    settings="scaler.extensions.audit:AuditSettings",
    scheduler="scaler.extensions.audit.core:Audit",
    performer="scaler.extensions.audit.file:audit_file",
    found=(
        FoundTable(
            "audit",
            "Who did what",
            "scaler.extensions.audit.rows:AuditRow",
            most=2_000,
            parameter=("key", "A key's name."),
            page="clients",
            for_monitors=True,
        ),
    ),
)
