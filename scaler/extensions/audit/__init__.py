"""The audit log.

changes of the core -> core.py: records, frequent events counted -> monitors, and file.py: audit_path
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.plugins import Extension, LogTable


@dataclass(frozen=True, kw_only=True)
class AuditSettings(SettingsModel):
    """Audit log."""

    audit_path: Annotated[str, Setting(default_text="none: the latest records are kept in memory", metavar="PATH")] = ""
    """File to which the audit log is appended as JSON lines: connections, refusals, submitted and cancelled tasks. Only
    the owner can read the file. At 64 MiB, it is renamed to PATH.1."""


EXTENSION = Extension(
    "audit",
    settings="scaler.extensions.audit:AuditSettings",
    scheduler="scaler.extensions.audit.core:Audit",
    performer="scaler.extensions.audit.file:audit_file",
    logs=(
        LogTable(
            "audit",
            "Who did what",
            "scaler.extensions.audit.rows:AuditRow",
            keep=2_000,
            page="clients",
            empty="Connections, refusals, and submitted tasks appear here.",
        ),
    ),
)
