"""Failures: the most recent failed tasks, grouped by function and message, with their functions and arguments.

TaskFailed of the core -> core.py: functions, arguments, and inputs -> FailedTask, the answer to ReadFailure
TaskRow of a monitor -> monitor.py: groups -> tables.py
unpicklable value -> unpicklable_members.py: the unpicklable part
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "failures",
    questions="scaler.extensions.failures.bundle:FailureCalls",
    own={"culprit": "scaler.extensions.failures.unpicklable_members:find_culprit"},
    scheduler="scaler.extensions.failures.core:Failures",
    page="scaler.extensions.failures:failures",
    monitor="scaler.extensions.failures.monitor:FailedTasks",
    tables="scaler.extensions.failures.tables:TABLES",
)
