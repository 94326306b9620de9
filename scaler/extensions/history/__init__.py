"""The history: figures per minute, decisions, incidents, and failures across restarts, and recently ended tasks.

changes of the core -> core.py: records -> files.py: state_directory -> HistoryFound, the answer to FindHistory
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "history",
    settings="scaler.extensions.history.settings:HistorySettings",
    scheduler="scaler.extensions.history.core:History",
    performer="scaler.extensions.history.files:history_files",
)
