"""One session, with the connection that it is on, from its creation until it is closed or lost.

The lock is held while a task is sent and its id noted: its response may come on another thread before that. Nothing
is reported under the lock.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from scaler.protocol.messages import Outcome
from scaler.worker.call import Call, CallResult, pack_call, pack_result
from scaler.worker.executor import CallFailed, CallFinished, CallKey, CallStarted, ExecutorError, Report
from scaler.worker.processor.calling import failure_of
from scaler.worker_manager.symphony.login import read_password
from scaler.worker_manager.symphony.refusals import Refusal
from scaler.worker_manager.symphony.soam import payload_class
from scaler.worker_manager.symphony.soamcontrol import kill_tasks

SESSION_TYPE = "RecoverableAllHistoricalData"
MAX_REFUSALS_IN_A_ROW = 10
"""Of so many tasks that are refused one after another, the rest need not be tried."""

CLOSE_SECONDS = 10.0
"""How long the end of a session that was lost is waited for."""

_ENDS = r"abort\w*|kill\w*|clos\w*|lost|not open|broken|disconnect\w*"
_SESSION_ENDED = re.compile(
    rf"(?<!of )(?<!in )\b(session|connection)\b(\s+<?[\w:.-]+>?)?\s+((was|is|has been)\s+)?({_ENDS})\b", re.IGNORECASE
)
"""How the library says that not the task is at fault; it has no codes that are the same in all releases."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where tasks go."""

    application: str
    user: str
    password_file: str | None
    session_name: str
    session_priority: int | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read the executor's settings."""
        return cls(**settings)


class SoamSession:
    """See the module. Connects when it is made; raises ExecutorError when that fails.

    All methods are called from one thread; report is called from that one and from the library's.
    """

    def __init__(self, soamapi: Any, place: Place, report: Callable[[Report], None]) -> None:
        self._soamapi = soamapi
        self._report = report
        self._message = payload_class(soamapi)
        self._lock = threading.Lock()
        self._keys: dict[Any, CallKey] = {}
        """The calls that have not ended, by the ids of their tasks."""
        self._ids: dict[CallKey, Any] = {}
        self.lost = ""
        """Why the session can be used no more; empty while it can."""
        self._ending: threading.Thread | None = None
        self._application = place.application
        security = soamapi.DefaultSecurityCallback(place.user, read_password(place.password_file))
        try:
            self._connection = soamapi.connect(place.application, security)
        except soamapi.SoamException as error:
            raise ExecutorError(f"cannot connect to Symphony's application {place.application!r}: {error}") from error
        try:
            self._session = self._connection.create_session(self._attributes(place))
        except soamapi.SoamException as error:
            self._disconnect()
            raise ExecutorError(f"cannot open a session of application {place.application!r}: {error}") from error

    def send(self, calls: Sequence[Call]) -> dict[CallKey, Refusal | None]:
        """Submit calls as tasks. Returns those that were tried, in their order, with why they were not taken."""
        tried: dict[CallKey, Refusal | None] = {}
        refusals = 0
        for call in calls:
            refusal = tried[call.key] = self._send(call)
            refusals = 0 if refusal is None else refusals + (not refusal.is_final)
            if self.lost or refusals == MAX_REFUSALS_IN_A_ROW:
                break
        if refusals == len(tried):
            self._lose_if_idle(f"it takes no tasks: {refusal.text if refusal else ''}")
        return tried

    def kill(self, keys: Sequence[CallKey]) -> None:
        """End the tasks of these calls; no more is reported of them. Raises ExecutorError when that is not certain."""
        with self._lock:
            found = [self._ids.pop(key) for key in keys if key in self._ids]
            for task_id in found:
                del self._keys[task_id]
        if not found:
            return
        if not hasattr(self._session, "kill_task"):
            kill_tasks(self._application, self._session.get_id(), found)
            return
        trouble = ""
        for task_id in found:
            try:
                self._session.kill_task(task_id)
            except self._soamapi.SoamException as error:
                trouble = f"Symphony did not kill a task: {error}"
        if trouble:
            raise ExecutorError(trouble)

    def close(self) -> None:
        """End the session with all its tasks, and the connection. Raises ExecutorError when that is not certain."""
        with self._lock:
            was_lost, self.lost = self.lost, self.lost or "it was closed"
            self._keys.clear()
            self._ids.clear()
        if not was_lost:
            self._end()
        elif self._ending is not None:
            self._ending.join(CLOSE_SECONDS)
            if self._ending.is_alive():
                raise ExecutorError(f"a session that was lost ({was_lost}) does not close within {CLOSE_SECONDS:g} s")

    def _end(self) -> None:
        try:
            self._session.close()
        except self._soamapi.SoamException as error:
            where = f"{self._application}:{self._session.get_id()}"
            raise ExecutorError(
                f"the session could not be closed ({error}) and its tasks may go on; "
                f"end it with: soamcontrol session kill {where}"
            ) from error
        finally:
            self._disconnect()

    def _abandon(self) -> None:
        try:
            self._end()
        except ExecutorError as error:
            _log.warning("%s", error)

    def _attributes(self, place: Place) -> Any:
        attributes = self._soamapi.SessionCreationAttributes()
        attributes.set_session_type(SESSION_TYPE)
        attributes.set_session_name(place.session_name)
        attributes.set_session_flags(self._soamapi.SessionFlags.PARTIAL_ASYNC)
        attributes.set_session_callback(_callback_class(self._soamapi)(self._on_response, self._lose))
        if place.session_priority is not None:
            attributes.set_session_priority(place.session_priority)
        return attributes

    def _disconnect(self) -> None:
        try:
            self._connection.close()
        except self._soamapi.SoamException as error:
            _log.info("closing the connection to application %s: %s", self._application, error)

    def _send(self, call: Call) -> Refusal | None:
        """Submit a call. Returns why it was not taken."""
        attributes = self._soamapi.TaskSubmissionAttributes()
        attributes.set_task_input(self._message(pack_call(call)))
        refusal: Refusal | None = None
        with self._lock:
            if self.lost:
                return Refusal(self.lost)
            try:
                task_id = self._session.send_task_input(attributes).get_id()
            except self._soamapi.SoamException as error:
                refusal = Refusal(str(error) or type(error).__name__)
            except Exception as error:  # noqa: BLE001 (this call's bytes are more than the library can take)
                return Refusal(f"{type(error).__name__}: {error}", is_final=True)
            else:
                self._keys[task_id] = call.key
                self._ids[call.key] = task_id
        if refusal is None:
            self._report(CallStarted(*call.key))  # nobody tells when it really starts
        elif _SESSION_ENDED.search(refusal.text):
            self._lose(refusal.text)
        return refusal

    def _lose_if_idle(self, why: str) -> None:
        """Give a session up that takes nothing: when it holds nothing, that is no loss, whatever is wrong with it."""
        with self._lock:
            is_idle = not self._keys
        if is_idle:
            self._lose(why)

    # -- on threads of the library

    def _on_response(self, handle: Any) -> None:
        try:
            task_id = handle.get_id()
        except Exception as error:  # noqa: BLE001 (raising into the library is undefined)
            self._lose(f"a response does not say of which task it is: {error}")
            return
        with self._lock:
            key = self._keys.pop(task_id, None)
            if key is None:
                return  # cancelled meanwhile, or it came twice
            del self._ids[key]
        try:
            report = self._outcome(key, handle)
        except Exception as error:  # noqa: BLE001 (as above)
            report = CallFailed(
                *key, Outcome.WORKER_LOST, f"Symphony ran the task, and its result cannot be read: {error}"
            )
        self._report(report)

    def _outcome(self, key: CallKey, handle: Any) -> Report:
        if handle.is_successful():
            message = self._message()
            handle.populate_task_output(message)
            return CallFinished(*key, message.data)
        exception = handle.get_exception()
        embedded = exception.get_embedded_exception()
        if isinstance(embedded, BaseException):
            outcome, payload = failure_of(embedded, lambda _: False, __file__)
            return CallFinished(*key, pack_result(CallResult(outcome, [payload])))
        text = str(exception) or type(exception).__name__
        if _SESSION_ENDED.search(text):
            self._lose(text)
            return CallFailed(*key, Outcome.NOT_STARTED, f"Symphony's session was lost: {text}")
        return CallFailed(*key, Outcome.PROCESSOR_DIED, f"Symphony gave the task up: {text}")

    def _lose(self, why: object) -> None:
        """Give all calls back."""
        with self._lock:
            if self.lost:
                return
            self.lost = text = str(why) or type(why).__name__
            keys = list(self._ids)
            self._keys.clear()
            self._ids.clear()
            # What it may still run is ended; not here, because closing it in a callback would hang.
            self._ending = threading.Thread(target=self._abandon, name="lost-session", daemon=True)
            self._ending.start()
        _log.warning("Symphony's session was lost with %d tasks: %s", len(keys), text)
        for key in keys:
            self._report(CallFailed(*key, Outcome.NOT_STARTED, f"Symphony's session was lost: {text}"))


def _callback_class(soamapi: Any) -> Any:
    class Callback(soamapi.SessionCallback):  # type: ignore[misc]
        def __init__(self, on_response: Callable[[Any], None], on_exception: Callable[[object], None]) -> None:
            super().__init__()
            self._on_response = on_response
            self._on_exception = on_exception

        def on_response(self, handle: Any) -> None:
            self._on_response(handle)

        def on_exception(self, exception: Any) -> None:
            self._on_exception(exception)

    return Callback
