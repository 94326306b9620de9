"""Changes that the scheduler part of an extension can subscribe to, and commands that it can return."""

from scaler.net.connection import Closed as Closed
from scaler.net.connection import Opened as Opened
from scaler.scheduler.core.changes import Action as Action
from scaler.scheduler.core.changes import AdmissionRefused as AdmissionRefused
from scaler.scheduler.core.changes import Expelled as Expelled
from scaler.scheduler.core.changes import Incident as Incident
from scaler.scheduler.core.changes import KeysRead as KeysRead
from scaler.scheduler.core.changes import Noted as Noted
from scaler.scheduler.core.changes import TaskFailed as TaskFailed
from scaler.scheduler.core.changes import TaskRetried as TaskRetried
from scaler.scheduler.core.changes import TasksArrived as TasksArrived
from scaler.scheduler.core.changes import TasksEnded as TasksEnded
from scaler.scheduler.core.changes import TasksStarted as TasksStarted
from scaler.scheduler.core.commands import Command as Command
from scaler.scheduler.core.commands import HoldObjects as HoldObjects
from scaler.scheduler.core.commands import Perform as Perform
from scaler.scheduler.core.rooms import Now as Now
