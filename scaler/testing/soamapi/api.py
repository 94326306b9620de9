"""The client API: names that programs import as `soamapi`."""

from __future__ import annotations

import enum
import threading

from scaler.testing.soamapi.grid import DEFAULT_PRIORITY, Grid, GridSession, Response
from scaler.testing.soamapi.messages import (
    FailureException,
    FatalException,
    InputStream,
    Message,
    OutputStream,
    SoamException,
    dump,
    load,
)
from scaler.testing.soamapi.service import ServiceContainer, ServiceContext, SessionContext, TaskContext
from scaler.testing.soamapi.settings import Event, StandIn

__all__ = [
    "Connection",
    "DefaultSecurityCallback",
    "FailureException",
    "FatalException",
    "InputStream",
    "Message",
    "OutputStream",
    "ServiceContainer",
    "ServiceContext",
    "SessionCallback",
    "SessionContext",
    "SessionCreationAttributes",
    "SessionFlags",
    "SoamException",
    "TaskContext",
    "TaskInputHandle",
    "TaskOutputHandle",
    "TaskSubmissionAttributes",
    "connect",
    "initialize",
]


MAX_PRIORITY = 10_000


class SessionFlags(enum.IntFlag):
    """How a client receives its responses."""

    RECEIVE_SYNC = 1
    PARTIAL_ASYNC = 2


class TaskInputHandle:
    def __init__(self, task_id: str) -> None:
        self._task_id = task_id

    def get_id(self) -> str:
        return self._task_id


class TaskOutputHandle:
    def __init__(self, response: Response) -> None:
        self._response = response

    def get_id(self) -> str:
        return self._response.task_id

    def is_successful(self) -> bool:
        return self._response.output is not None

    def populate_task_output(self, message: Message) -> None:
        if self._response.unreadable:
            raise SoamException(self._response.unreadable)
        if self._response.output is None:
            raise SoamException("the task has no output")
        load(message, self._response.output)

    def get_exception(self) -> SoamException:
        if self._response.error is None:
            raise SoamException("the task has not failed")
        return self._response.error


class SessionCallback:
    """Base class of clients' callbacks, which run on threads of the library, several at a time."""

    def on_response(self, handle: TaskOutputHandle) -> None:
        raise NotImplementedError

    def on_exception(self, exception: SoamException) -> None:
        raise NotImplementedError


class SessionCreationAttributes:
    def __init__(self) -> None:
        self.session_name = ""
        self.session_type = ""
        self.flags = SessionFlags.RECEIVE_SYNC
        self.callback: SessionCallback | None = None
        self.priority = DEFAULT_PRIORITY

    def set_session_name(self, name: str) -> None:
        """Set a name of at most 256 characters."""
        if len(name) > 256:
            raise SoamException("a session's name has at most 256 characters")
        self.session_name = name

    def set_session_type(self, kind: str) -> None:
        self.session_type = kind

    def set_session_flags(self, flags: SessionFlags) -> None:
        self.flags = flags

    def set_session_callback(self, callback: SessionCallback) -> None:
        self.callback = callback

    def set_session_priority(self, priority: int) -> None:
        """Set a priority from 1 to 10,000. Higher priorities run first."""
        self.priority = checked_priority(priority)


class TaskSubmissionAttributes:
    def __init__(self) -> None:
        self.task_input: Message | None = None

    def set_task_input(self, message: Message) -> None:
        self.task_input = message


def checked_priority(priority: int) -> int:
    if not 1 <= priority <= MAX_PRIORITY:
        raise SoamException(f"a priority must be from 1 to {MAX_PRIORITY}")
    return priority


class _State:
    """The grid of this process, from the first connection on."""

    lock = threading.Lock()
    settings: StandIn | None = None
    grid: Grid | None = None
    connections = 0
    is_initialized = False


def reset(settings: StandIn | None) -> list[BaseException]:
    """Replace the stand-in, and return its callbacks' exceptions. None: use the environment's settings."""
    with _State.lock:
        grid, _State.grid, _State.connections = _State.grid, None, 0
        _State.settings, _State.is_initialized = settings, False
    if grid is None:
        return []
    grid.close()
    return grid.callback_errors


def grid() -> Grid:
    assert _State.grid is not None
    return _State.grid


def initialize() -> None:
    _State.is_initialized = True


class DefaultSecurityCallback:
    """The user that connects."""

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self.password = password


class ClientSession:
    def __init__(self, connection: Connection, session: GridSession) -> None:
        self._connection = connection
        self._session = session

    def get_id(self) -> str:
        return self._session.session_id

    def send_task_input(self, attributes: TaskSubmissionAttributes) -> TaskInputHandle:
        self._connection.check()
        assert attributes.task_input is not None
        data = dump(attributes.task_input)
        fault = grid().fault("send")
        match fault.do if fault is not None else None:
            case "abort" if fault is not None:
                grid().abort(self._session, fault.text)
            case "disconnect" if fault is not None:
                self._connection.cut(fault.text)
            case "refuse" if fault is not None:
                raise SoamException(fault.text)
            case _:
                pass
        self._connection.check()
        return TaskInputHandle(grid().send(self._session, data))

    def update_priority(self, priority: int) -> None:
        grid().update_priority(self._session, checked_priority(priority))

    def close(self) -> None:
        """End the session and all its tasks. Raises SoamException, and RuntimeError in a callback, which would
        deadlock.
        """
        if grid().callbacks.is_own_thread():
            raise RuntimeError("close() in a callback is a deadlock")
        self._connection.check()
        grid().close_session(self._session)


class KillingSession(ClientSession):
    """A session of a library that can kill tasks."""

    def kill_task(self, task_id: str) -> None:
        """Kill a queued or running task. Raises SoamException, even for an ended task."""
        self._connection.check()
        _refuse("kill")
        grid().kill_task(self._session, task_id)


class Connection:
    def __init__(self, connection_id: str) -> None:
        self._connection_id = connection_id
        self._sessions: list[GridSession] = []
        self._cut = ""
        self._is_closed = False

    def get_id(self) -> str:
        return self._connection_id

    def create_session(self, attributes: SessionCreationAttributes) -> ClientSession:
        self.check()
        _refuse("create_session")
        callback = attributes.callback
        if callback is None or attributes.flags != SessionFlags.PARTIAL_ASYNC:
            raise SoamException("the stand-in supports only sessions with a callback and the flag PARTIAL_ASYNC")
        session = grid().create_session(
            attributes.session_name,
            attributes.priority,
            lambda response: callback.on_response(TaskOutputHandle(response)),
            callback.on_exception,
        )
        self._sessions.append(session)
        return (KillingSession if grid().settings.can_kill else ClientSession)(self, session)

    def close(self) -> None:
        """Close the connection and its open sessions."""
        if self._is_closed:
            return
        self._is_closed = True
        for session in self._sessions:
            grid().close_session(session)
        with _State.lock:
            _State.connections -= 1
            last = _State.connections == 0
        if last:
            grid().rest()

    def check(self) -> None:
        if self._cut or self._is_closed:
            raise SoamException(f"the connection is closed: {self._cut or 'by its client'}")

    def cut(self, text: str) -> None:
        self._cut = text
        for session in self._sessions:
            grid().abort(session, f"connection lost: {text}")


def connect(application: str, security: DefaultSecurityCallback) -> Connection:
    """Connect to an application. Raises SoamException."""
    if not _State.is_initialized:
        raise SoamException("initialize() was not called")
    with _State.lock:
        if _State.grid is None:
            _State.grid = Grid(_State.settings or StandIn.from_environment())
        found = _State.grid
        _State.connections += 1
    try:
        _refuse("connect")
        settings = found.settings
        if settings.applications and application not in settings.applications:
            raise SoamException(f"application {application} is not registered")
        if settings.users is not None and settings.users.get(security.user) != security.password:
            raise SoamException(f"user {security.user} could not be authenticated")
    except SoamException:
        Connection("").close()
        raise
    return Connection(str(_State.connections))


def _refuse(event: Event) -> None:
    fault = grid().fault(event)
    if fault is not None:
        raise SoamException(fault.text)
