"""Calls: progress of maps, graphs, tags, and single submits by function.

core groups, `CallsReported` from clients -> core.py: records and rows -> monitor.py: progress
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "calls",
    scheduler="scaler.extensions.calls.core:Calls",
    monitor="scaler.extensions.calls.monitor:CallsProgress",
    page="scaler.extensions.calls:calls",
)
