"""Calls: progress of maps, graphs, tags, and single submits by function.

groups of the core, CallsReported of a client -> core.py: records and rows -> monitor.py: progress
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "calls",
    scheduler="scaler.extensions.calls.core:Calls",
    monitor="scaler.extensions.calls.monitor:CallsProgress",
    page="scaler.extensions.calls:calls",
)
