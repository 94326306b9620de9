"""Failures: the most recent failed tasks, grouped by function and message."""

from __future__ import annotations

from scaler.plugins import Extension

EXTENSION = Extension(
    "failures",
    page="scaler.extensions.failures:failures",
    monitor="scaler.extensions.failures.monitor:FailedTasks",
    tables="scaler.extensions.failures.tables:TABLES",
)
