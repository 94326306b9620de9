"""The service API: the container, and the contexts passed to it."""

from __future__ import annotations

import os
import pickle

from scaler.testing.soamapi.instance import SERVICE_FD_VARIABLE, Answer, Answered, Invoke, ServiceEnd, Threw
from scaler.testing.soamapi.messages import FailureException, FatalException, Message, SoamException, dump, load


class ServiceContext:
    """Passed to a service on creation."""


class SessionContext:
    """Passed to a service before tasks of another session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    def get_session_id(self) -> str:
        return self._session_id


class TaskContext:
    def __init__(self, task: Invoke) -> None:
        self._task = task
        self._output: bytes | None = None

    def get_task_id(self) -> str:
        return self._task.task_id

    def populate_task_input(self, message: Message) -> None:
        load(message, self._task.data)

    def set_task_output(self, message: Message) -> None:
        self._output = dump(message)

    def output(self) -> bytes:
        if self._output is None:
            raise FatalException("the service set no output")
        return self._output


class ServiceContainer:
    """Base class of services."""

    def on_create_service(self, service_context: ServiceContext) -> None:
        """Prepare once."""

    def on_session_enter(self, session_context: SessionContext) -> None:
        """Prepare for tasks of a session."""

    def on_invoke(self, task_context: TaskContext) -> None:
        raise NotImplementedError

    def on_session_leave(self) -> None:
        """Called after the last task of the session."""

    def run(self) -> None:
        """Serve until the grid ends this process. Raises SoamException if no grid has started the process."""
        descriptor = os.environ.pop(SERVICE_FD_VARIABLE, None)
        if descriptor is None:
            raise SoamException("this process was not started by Symphony")
        end = ServiceEnd(int(descriptor))
        self.on_create_service(ServiceContext())
        session_id = ""
        while True:
            task = end.next()
            if session_id != task.session_id:
                if session_id:
                    self.on_session_leave()
                session_id = task.session_id
                self.on_session_enter(SessionContext(session_id))
            end.answer(_sendable(self._invoke(task)))

    def _invoke(self, task: Invoke) -> Answer:
        context = TaskContext(task)
        try:
            self.on_invoke(context)
            return Answered(context.output())
        except Exception as error:  # noqa: BLE001 (whatever a service throws is its answer)
            return Threw(error, again=isinstance(error, FailureException))


def _sendable(answer: Answer) -> Answer:
    try:
        pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 (what cannot be pickled raises anything)
        return Threw(FatalException(f"the service's exception cannot be sent: {error}"), again=False)
    return answer
