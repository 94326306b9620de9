"""Runs calls as tasks of a Symphony session. The next calls replace a lost session."""

from __future__ import annotations

import logging
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from scaler.errors import ConfigError
from scaler.offload import call as c
from scaler.offload.call import Call, CallKey, ExecutorError
from scaler.paths import local_path
from scaler.processes import absolute
from scaler.protocol.messages import Outcome
from scaler.security.private_files import read_private
from scaler.worker.processor.calling import failure_of
from scaler.worker_manager.offload import OffloadBackend, OffloadConfig, document_of
from scaler.worker_manager.symphony import SymphonyConfig
from scaler.worker_manager.symphony.service import LIBRARY, MISSING, load_library, payload_class

MAX_PASSWORD_FILE_BYTES = 4096
SESSION_TYPE = "RecoverableAllHistoricalData"
MAX_REFUSALS_IN_A_ROW = 10  # after this many consecutive refusals, skip the remaining calls
CLOSE_SECONDS = 10.0  # time limit for closing a lost session
KILL_COMMAND = "soamcontrol"
KILL_SECONDS = 10.0
KILLED_AT_ONCE = 500

_ENDS = r"abort\w*|kill\w*|clos\w*|lost|not open|broken|disconnect\w*"
_SESSION_ENDED = re.compile(
    rf"(?<!of )(?<!in )\b(session|connection)\b(\s+<?[\w:.-]+>?)?\s+((was|is|has been)\s+)?({_ENDS})\b", re.IGNORECASE
)
"""Matches library messages about the session rather than the task. Error codes differ between releases."""

_log = logging.getLogger(__name__)


def read_password(path: str | None) -> str:
    if path is None:
        return ""
    try:
        line = read_private(local_path(path), MAX_PASSWORD_FILE_BYTES).partition("\n")[0].removesuffix("\r")
    except ConfigError as error:
        raise ConfigError(f"symphony_password_file: {error}") from None
    if not line:
        raise ConfigError(f"symphony_password_file {path!r} contains no password on its first line")
    if "\ufffd" in line:
        raise ConfigError(f"symphony_password_file {path!r} is not UTF-8")
    return line


def kill_tasks(application: str, session_id: object, task_ids: Sequence[object]) -> None:
    """Kill tasks with the product's command, for releases whose library cannot kill tasks. Raises ExecutorError."""
    for first in range(0, len(task_ids), KILLED_AT_ONCE):
        ids = ",".join(map(str, task_ids[first : first + KILLED_AT_ONCE]))
        try:
            done = subprocess.run(
                [KILL_COMMAND, "task", "kill", f"{application}:{session_id}:{ids}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=KILL_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            text = f"{KILL_COMMAND} is not in PATH: source the profile of Symphony's client"
            raise ExecutorError(f"this soamapi cannot kill tasks, and {text}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExecutorError(f"{KILL_COMMAND} task kill failed: {error}") from error
        if done.returncode:
            output = " ".join((done.stderr or done.stdout).split())
            raise ExecutorError(f"{KILL_COMMAND} task kill failed with exit code {done.returncode}: {output[:500]}")


@dataclass(frozen=True, slots=True)
class CallRefusal:
    text: str
    is_final: bool = False


class SoamSession:
    """One session and its connection. The constructor connects, and raises ExecutorError on failure. Methods must be
    called from one thread; report is called from that thread and from the library's threads. The lock is held while a
    task is sent and its id recorded, because another thread may get the response earlier, but not while reporting."""

    def __init__(self, soamapi: Any, config: SymphonyConfig, report: Callable[[c.Report], None]) -> None:
        self._soamapi = soamapi
        self._report = report
        self._message = payload_class(soamapi)
        self._lock = threading.Lock()
        self._keys: dict[Any, CallKey] = {}
        self.lost = ""  # why the session is unusable; empty if usable
        self._ending: threading.Thread | None = None
        self._application = application = config.service_name
        security = soamapi.DefaultSecurityCallback(config.symphony_user, read_password(config.symphony_password_file))
        try:
            self._connection = soamapi.connect(application, security)
        except soamapi.SoamException as error:
            raise ExecutorError(f"cannot connect to Symphony's application {application!r}: {error}") from error
        attributes = soamapi.SessionCreationAttributes()
        respond, lose = self._on_response, self._lose

        class Callback(soamapi.SessionCallback):  # type: ignore[misc]
            def on_response(self, handle: Any) -> None:
                respond(handle)

            def on_exception(self, exception: Any) -> None:
                lose(exception)

        try:
            attributes.set_session_type(SESSION_TYPE)
            attributes.set_session_name(config.session_name or config.worker_manager_id)
            attributes.set_session_flags(soamapi.SessionFlags.PARTIAL_ASYNC)
            attributes.set_session_callback(Callback())
            if config.session_priority is not None:
                attributes.set_session_priority(config.session_priority)
            self._session = self._connection.create_session(attributes)
        except soamapi.SoamException as error:
            self._disconnect()
            raise ExecutorError(f"cannot open a session of application {application!r}: {error}") from error

    def send(self, calls: Sequence[Call]) -> dict[CallKey, CallRefusal | None]:
        """Submit calls as tasks. Return the calls that were tried, in order, with reasons for refusals."""
        tried: dict[CallKey, CallRefusal | None] = {}
        refusals = 0
        for call in calls:
            refusal = tried[call.key] = self._send(call)
            refusals = 0 if refusal is None else refusals + (not refusal.is_final)
            if self.lost or refusals == MAX_REFUSALS_IN_A_ROW:
                break
        if refusals == len(tried):
            with self._lock:
                is_idle = not self._keys
            if is_idle:  # replace a session that has no tasks and accepts none
                self._lose(f"it accepts no tasks: {refusal.text if refusal else ''}")
        return tried

    def kill(self, keys: Sequence[CallKey]) -> None:
        """Terminate these calls' tasks, without further reports. Raises ExecutorError if they may still run."""
        ended = set(keys)
        with self._lock:
            found = [task_id for task_id, key in self._keys.items() if key in ended]
            for task_id in found:
                del self._keys[task_id]
        if not found:
            return
        if not hasattr(self._session, "kill_task"):
            kill_tasks(self._application, self._session.get_id(), found)
            return
        failures = []
        for task_id in found:
            try:
                self._session.kill_task(task_id)
            except self._soamapi.SoamException as error:
                failures.append(f"Symphony did not kill a task: {error}")
        if failures:
            raise ExecutorError(failures[-1])

    def close(self) -> None:
        """End the session, its tasks, and the connection. Raises ExecutorError if the session or its tasks may
        continue."""
        with self._lock:
            was_lost, self.lost = self.lost, self.lost or "it was closed"
            self._keys.clear()
        if not was_lost:
            self._end()
        elif self._ending is not None:
            self._ending.join(CLOSE_SECONDS)
            if self._ending.is_alive():
                raise ExecutorError(f"a session that was lost ({was_lost}) did not close within {CLOSE_SECONDS:g} s")

    def _end(self) -> None:
        try:
            self._session.close()
        except self._soamapi.SoamException as error:
            raise ExecutorError(
                f"the session could not be closed ({error}) and its tasks may continue; "
                f"end it with: soamcontrol session kill {self._application}:{self._session.get_id()}"
            ) from error
        finally:
            self._disconnect()

    def _abandon(self) -> None:
        try:
            self._end()
        except ExecutorError as error:
            _log.warning("%s", error)

    def _disconnect(self) -> None:
        try:
            self._connection.close()
        except self._soamapi.SoamException as error:
            _log.info("closing the connection to application %s: %s", self._application, error)

    def _send(self, call: Call) -> CallRefusal | None:
        attributes = self._soamapi.TaskSubmissionAttributes()
        attributes.set_task_input(self._message(c.pack_call(call)))
        refusal: CallRefusal | None = None
        with self._lock:
            if self.lost:
                return CallRefusal(self.lost)
            try:
                task_id = self._session.send_task_input(attributes).get_id()
            except self._soamapi.SoamException as error:
                refusal = CallRefusal(str(error) or type(error).__name__)
            except Exception as error:  # noqa: BLE001 (the call is too large for the library)
                return CallRefusal(f"{type(error).__name__}: {error}", is_final=True)
            else:
                self._keys[task_id] = call.key
        if refusal is None:
            self._report(c.CallStarted(*call.key))  # Symphony does not report the actual start
        elif _SESSION_ENDED.search(refusal.text):
            self._lose(refusal.text)
        return refusal

    # -- on the library's threads

    def _on_response(self, handle: Any) -> None:
        try:
            task_id = handle.get_id()
        except Exception as error:  # noqa: BLE001 (raising into the library is undefined)
            self._lose(f"a response does not identify its task: {error}")
            return
        with self._lock:
            key = self._keys.pop(task_id, None)
        if key is None:
            return  # cancelled, or a duplicate
        try:
            report = self._outcome(key, handle)
        except Exception as error:  # noqa: BLE001 (as above)
            report = c.CallFailed(
                *key, Outcome.WORKER_LOST, f"Symphony ran the task, but its result cannot be read: {error}"
            )
        self._report(report)

    def _outcome(self, key: CallKey, handle: Any) -> c.Report:
        if handle.is_successful():
            message = self._message()
            handle.populate_task_output(message)
            return c.CallFinished(*key, message.data)
        exception = handle.get_exception()
        embedded = exception.get_embedded_exception()
        if isinstance(embedded, BaseException):
            outcome, payload = failure_of(embedded)
            return c.CallFinished(*key, c.pack_result(c.CallResult(outcome, [payload])))
        text = str(exception) or type(exception).__name__
        if _SESSION_ENDED.search(text):
            self._lose(text)
            return c.CallFailed(*key, Outcome.NOT_STARTED, f"Symphony's session was lost: {text}")
        return c.CallFailed(*key, Outcome.PROCESSOR_DIED, f"Symphony gave up on the task: {text}")

    def _lose(self, why: object) -> None:
        with self._lock:
            if self.lost:
                return
            self.lost = text = str(why) or type(why).__name__
            keys = list(self._keys.values())
            self._keys.clear()
            # End any remaining tasks in a thread, because closing the session in a callback would hang.
            self._ending = threading.Thread(target=self._abandon, name="lost-session", daemon=True)
            self._ending.start()
        _log.warning("Symphony's session was lost: %s tasks=%d", text, len(keys))
        for key in keys:
            self._report(c.CallFailed(*key, Outcome.NOT_STARTED, f"Symphony's session was lost: {text}"))


EXECUTOR = "scaler.worker_manager.symphony.executor:SymphonyExecutor"
MOST_TASKS = 100_000  # maximum number of tasks in the session if max_task_concurrency sets no limit
MAX_REFUSALS_OF_ONE = 3


def make_backend(config: SymphonyConfig) -> OffloadBackend:
    """Raises ConfigError if soamapi is missing, or if the password file is missing, empty, or not private."""
    if find_spec(LIBRARY) is None:
        raise ConfigError(MISSING)
    path = None if config.symphony_password_file is None else str(absolute(local_path(config.symphony_password_file)))
    read_password(path)
    limit = config.max_task_concurrency
    settings = document_of(replace(config, symphony_password_file=path))
    return OffloadBackend(config, EXECUTOR, MOST_TASKS if limit < 0 else limit, settings)


class RefusalCounts:
    """Calls refused in the last batch. A call fails after several refusals while later calls are accepted."""

    def __init__(self) -> None:
        self._counts: dict[CallKey, int] = {}

    def order(self, calls: Sequence[Call]) -> list[Call]:
        fresh = [call for call in calls if call.key not in self._counts]
        known = {call.key: call for call in calls if call.key in self._counts}
        again = [known[key] for key in self._counts if key in known]
        return [*again[:1], *fresh, *again[1:]]

    def note(self, calls: Sequence[Call], tried: Mapping[CallKey, CallRefusal | None]) -> dict[CallKey, str]:
        """Record outcomes (None: accepted). Return the calls that fail, with the reasons."""
        last = max((index for index, refusal in enumerate(tried.values()) if refusal is None), default=-1)
        given_up: dict[CallKey, str] = {}
        keys = {call.key for call in calls}
        counts = {key: count for key, count in self._counts.items() if key in keys}
        for index, (key, refusal) in enumerate(tried.items()):
            count = counts.pop(key, 0)
            if refusal is None:
                continue
            count += index < last
            if refusal.is_final:
                given_up[key] = refusal.text
            elif count >= MAX_REFUSALS_OF_ONE:
                given_up[key] = f"{refusal.text} ({count} times, while other tasks were accepted)"
            else:
                counts[key] = count
        self._counts = counts
        return given_up


class SymphonyExecutor:
    """An `Executor` for Symphony, which does not report when tasks start, so time limits count from the submission."""

    def __init__(self, config: OffloadConfig) -> None:
        self._config = config.settings(SymphonyConfig)
        self._open: Callable[[], SoamSession] | None = None
        self._session: SoamSession | None = None
        self._refusals = RefusalCounts()
        self._report: Callable[[c.Report], None] = lambda _: None

    def start(self, report: Callable[[c.Report], None]) -> None:
        self._report = report
        soamapi = load_library()
        soamapi.initialize()
        self._open = lambda: SoamSession(soamapi, self._config, report)
        self._session = self._open()

    def run(self, calls: Sequence[Call]) -> None:
        assert self._open is not None, "start() was not called"
        if self._session is None or self._session.lost:
            self.close()
            self._session = self._open()
        tried = self._session.send(self._refusals.order(calls))
        given_up = self._refusals.note(calls, tried)
        for key, why in given_up.items():
            self._report(c.CallFailed(*key, Outcome.REJECTED, f"Symphony rejects the task: {why}"))
        settled = [key for key, refusal in tried.items() if refusal is None or key in given_up]
        if len(settled) < len(calls):
            texts = [refusal.text for refusal in tried.values() if refusal is not None]
            raise ExecutorError(f"Symphony rejected tasks: {texts[-1]}", settled)

    def cancel(self, keys: Sequence[CallKey]) -> None:
        if self._session is not None:
            self._session.kill(keys)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
