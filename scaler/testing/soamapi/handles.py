"""What a client fills in and is given: attributes of sessions and tasks, handles of tasks, and its callback."""

from __future__ import annotations

import enum

from scaler.testing.soamapi.messages import Message, SoamException, load
from scaler.testing.soamapi.records import DEFAULT_PRIORITY, Response

MAX_PRIORITY = 10_000


class SessionFlags(enum.IntFlag):
    """How a client gets its responses."""

    RECEIVE_SYNC = 1
    PARTIAL_ASYNC = 2


class TaskInputHandle:
    """A task that was sent."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id

    def get_id(self) -> str:
        """Return the task's id."""
        return self._task_id


class TaskOutputHandle:
    """A task that has ended."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def get_id(self) -> str:
        """Return the task's id."""
        return self._response.task_id

    def is_successful(self) -> bool:
        """Tell whether there is an output."""
        return self._response.output is not None

    def populate_task_output(self, message: Message) -> None:
        """Fill a message with the output. Raises SoamException."""
        if self._response.unreadable:
            raise SoamException(self._response.unreadable)
        if self._response.output is None:
            raise SoamException("the task has no output")
        load(message, self._response.output)

    def get_exception(self) -> SoamException:
        """Return why there is no output."""
        if self._response.error is None:
            raise SoamException("the task has not failed")
        return self._response.error


class SessionCallback:
    """Extended by clients. Called on threads of the library, several at a time."""

    def on_response(self, handle: TaskOutputHandle) -> None:
        """Take in that a task has ended."""
        raise NotImplementedError

    def on_exception(self, exception: SoamException) -> None:
        """Take in that something is wrong with the session."""
        raise NotImplementedError


class SessionCreationAttributes:
    """What a session is to be like."""

    def __init__(self) -> None:
        self.session_name = ""
        self.session_type = ""
        self.flags = SessionFlags.RECEIVE_SYNC
        self.callback: SessionCallback | None = None
        self.priority = DEFAULT_PRIORITY

    def set_session_name(self, name: str) -> None:
        """At most 256 characters."""
        if len(name) > 256:
            raise SoamException("a session's name has at most 256 characters")
        self.session_name = name

    def set_session_type(self, kind: str) -> None:
        """Set the name of a type in the application's profile."""
        self.session_type = kind

    def set_session_flags(self, flags: SessionFlags) -> None:
        """Set how responses come."""
        self.flags = flags

    def set_session_callback(self, callback: SessionCallback) -> None:
        """Set what is called with responses."""
        self.callback = callback

    def set_session_priority(self, priority: int) -> None:
        """Set a priority from 1 to 10,000; a higher one goes first."""
        self.priority = checked_priority(priority)


class TaskSubmissionAttributes:
    """What a task is to be like."""

    def __init__(self) -> None:
        self.task_input: Message | None = None

    def set_task_input(self, message: Message) -> None:
        """Set what the service gets."""
        self.task_input = message


def checked_priority(priority: int) -> int:
    """Return a priority. Raises SoamException when it is none."""
    if not 1 <= priority <= MAX_PRIORITY:
        raise SoamException(f"a priority must be from 1 to {MAX_PRIORITY}")
    return priority
