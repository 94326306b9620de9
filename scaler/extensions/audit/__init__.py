"""The audit log.

changes of the core -> core.py: records, frequent events counted -> monitors, and file.py: audit_path
"""

from scaler.plugins import Extension, LogTable

EXTENSION = Extension(
    "audit",
    settings="scaler.extensions.audit.settings:AuditSettings",
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
