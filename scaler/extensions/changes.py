"""Changes that the scheduler part of an extension can subscribe to, and commands that it can return."""

from scaler.net.connection import Closed, Opened
from scaler.scheduler.core.changes import (
    Action,
    AdmissionRefused,
    Expelled,
    Incident,
    KeysRead,
    Noted,
    TaskFailed,
    TaskRetried,
    TasksEnded,
    TasksStarted,
)
from scaler.scheduler.core.commands import AddRows, Command, HoldObjects, Perform
from scaler.scheduler.core.rooms import Now

__all__ = [
    "Action",
    "AddRows",
    "AdmissionRefused",
    "Closed",
    "Command",
    "Expelled",
    "HoldObjects",
    "Incident",
    "KeysRead",
    "Noted",
    "Now",
    "Opened",
    "Perform",
    "TaskFailed",
    "TaskRetried",
    "TasksEnded",
    "TasksStarted",
]
