"""The stand-in for Symphony's grid: sessions, tasks, and slots that run the tasks in service processes.

Pending tasks run by session priority, then in arrival order. A task whose process dies is retried up to the limit.
Reclaimed slots do not count as retries. The end of a session or of its client's connection kills its running tasks.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import assert_never

from scaler.testing.soamapi.instance import Answer, Answered, Died, Instance, Invoke, Threw
from scaler.testing.soamapi.messages import FatalException, SoamException
from scaler.testing.soamapi.settings import Event, Fault, StandIn

CALLBACK_THREADS = 2
DEFAULT_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class Response:
    """Result of a task: output or error. unreadable: reason why the result cannot be fetched."""

    task_id: str
    output: bytes | None
    error: SoamException | None = None
    unreadable: str = ""


@dataclass(eq=False, slots=True)
class GridTask:
    task_id: str
    data: bytes
    deaths: int = 0
    slot: GridSlot | None = None
    interrupted: str = ""
    """Reason why the task's process is being killed. A reclaimed task continues elsewhere."""
    is_reclaimed: bool = False


@dataclass(eq=False, slots=True)
class GridSession:
    """A session. While open, it has all its unfinished tasks."""

    session_id: str
    name: str
    priority: int
    on_response: Callable[[Response], None]
    on_exception: Callable[[SoamException], None]
    tasks: dict[str, GridTask] = field(default_factory=dict)
    count: int = 0
    is_suspended: bool = False
    ended: str = ""

    def name_of(self, task: GridTask) -> str:
        return f"Task <{task.task_id}> of session <{self.session_id}>"


@dataclass(eq=False, slots=True)
class GridSlot:
    instance: Instance | None = None


class CallbackThreads:
    """Threads for callbacks. More than one, because callbacks may run concurrently."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CALLBACK_THREADS, thread_name_prefix="soam-callback")
        self._timers: list[threading.Timer] = []

    def add(self, action: Callable[[], None], seconds: float = 0.0) -> None:
        """Call `action` after `seconds`, unless `close` comes first."""
        if not seconds:
            self._submit(action)
            return
        timer = threading.Timer(seconds, self._submit, (action,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._pool.shutdown(cancel_futures=True)

    def is_own_thread(self) -> bool:
        return threading.current_thread().name.startswith("soam-callback")

    def _submit(self, action: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed since
            self._pool.submit(action)


class Grid:
    """See the module. Thread-safe."""

    def __init__(self, settings: StandIn) -> None:
        self.settings = settings
        self.callback_errors: list[BaseException] = []
        """Exceptions of callbacks, which must not raise."""
        self.callbacks = CallbackThreads()
        self._seen: Counter[Event] = Counter()
        self._changed = threading.Condition()
        self._sessions: dict[str, GridSession] = {}
        self._count = 0
        self._is_closed = False
        self._is_resting = False
        self._slots = [GridSlot() for _ in range(settings.slots)]
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name="soam-slot", daemon=True) for slot in self._slots
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._changed:
            for session in self._sessions.values():
                self._end(session, "the grid was shut down")
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.callbacks.close()

    def rest(self) -> None:
        """End all service processes until a session is opened. All sessions must have ended."""
        with self._changed:
            self._is_resting = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_resting or all(slot.instance is None for slot in self._slots))

    # -- client operations

    def fault(self, event: Event) -> Fault | None:
        with self._changed:
            self._seen[event] += 1
            number = self._seen[event]
            due = (each for each in self.settings.faults if each.on == event)
            return next((each for each in due if each.number <= number < each.number + each.times), None)

    def create_session(
        self,
        name: str,
        priority: int,
        on_response: Callable[[Response], None],
        on_exception: Callable[[SoamException], None],
    ) -> GridSession:
        with self._changed:
            self._is_resting = False
            self._count += 1
            session = GridSession(str(self._count), name, priority, on_response, on_exception)
            self._sessions[session.session_id] = session
            return session

    def send(self, session: GridSession, data: bytes) -> str:
        with self._changed:
            if session.ended:
                raise SoamException(f"Session <{session.session_id}> is not open: {session.ended}")
            session.count += 1
            task = GridTask(str(session.count), data)
            session.tasks[task.task_id] = task
            self._changed.notify()
            return task.task_id

    def close_session(self, session: GridSession) -> None:
        with self._changed:
            self._end(session, "it was closed")

    # -- administrator operations

    def sessions(self) -> list[GridSession]:
        with self._changed:
            return [session for session in self._sessions.values() if not session.ended]

    def running(self, session: GridSession) -> dict[str, int]:
        with self._changed:
            placed = {task.task_id: task.slot.instance for task in session.tasks.values() if task.slot is not None}
            return {task_id: instance.pid for task_id, instance in placed.items() if instance is not None}

    def suspend(self, session: GridSession) -> None:
        with self._changed:
            session.is_suspended = True

    def resume(self, session: GridSession) -> None:
        with self._changed:
            session.is_suspended = False
            self._changed.notify_all()

    def update_priority(self, session: GridSession, priority: int) -> None:
        with self._changed:
            session.priority = priority

    def kill_task(self, session: GridSession, task_id: str) -> None:
        with self._changed:
            task = session.tasks.get(task_id)
            if task is None:
                raise SoamException(f"Task <{task_id}> of session <{session.session_id}> has ended")
            if task.slot is None:
                del session.tasks[task_id]
                error = SoamException(f"{session.name_of(task)} was killed")
                self._respond(session, Response(task_id, None, error))
            else:
                self._interrupt(task, "was killed")

    def abort(self, session: GridSession, text: str) -> None:
        with self._changed:
            if session.ended:
                return
            self._end(session, text)
            error = FatalException(f"Session <{session.session_id}> was aborted: {text}")
            self.callbacks.add(lambda: self._call(lambda: session.on_exception(error)))

    def reclaim(self, session: GridSession, grace_seconds: float) -> None:
        """Reclaim the slots that run tasks of a session, after a grace period."""
        with self._changed:
            running = [task for task in session.tasks.values() if task.slot is not None]
        for task in running:
            self.callbacks.add(lambda task=task: self._take_away(task), grace_seconds)  # type: ignore[misc]

    def _take_away(self, task: GridTask) -> None:
        with self._changed:
            if task.slot is not None:
                task.is_reclaimed = True
                self._interrupt(task, "was reclaimed")

    # -- slots

    def _serve(self, slot: GridSlot) -> None:
        while (found := self._next(slot)) is not None:
            session, task = found
            fault = self.fault("invoke")
            if fault is not None and fault.do == "fail":
                answer: Answer = Threw(RuntimeError(fault.text), again=False)
            elif slot.instance is None:
                answer = Died(task.interrupted)  # ended before the instance started
            else:
                if fault is not None and fault.do == "die":
                    slot.instance.kill()
                answer = slot.instance.invoke(Invoke(session.session_id, task.task_id, task.data))
            with self._changed:
                if isinstance(answer, Died) or task.interrupted:
                    self._free(slot)
                self._has_ended(session, task, answer)
        with self._changed:
            self._free(slot)

    def _free(self, slot: GridSlot) -> None:
        if slot.instance is not None:
            slot.instance.close()
            slot.instance = None
            self._changed.notify_all()

    def _next(self, slot: GridSlot) -> tuple[GridSession, GridTask] | None:
        """Wait for a task and place it. Return None after `close`."""
        with self._changed:
            while True:
                if self._is_closed:
                    return None
                if self._is_resting:
                    self._free(slot)
                found = self._best()
                if found is not None:
                    found[1].slot = slot
                    break
                self._changed.wait()
        if slot.instance is None:
            instance = Instance(self.settings.service)
            with self._changed:
                if not found[1].interrupted:
                    slot.instance = instance
            if slot.instance is None:
                instance.close()
        return found

    def _best(self) -> tuple[GridSession, GridTask] | None:
        best = None
        for session in self._sessions.values():
            if session.is_suspended or session.ended or (best is not None and best[0].priority >= session.priority):
                continue
            task = next((task for task in session.tasks.values() if task.slot is None), None)
            if task is not None:
                best = session, task
        return best

    def _has_ended(self, session: GridSession, task: GridTask, answer: Answer) -> None:
        task.slot = None
        if session.ended:
            return
        match answer:
            case Answered(data):
                response = Response(task.task_id, data)
            case Threw(error, again):
                if again and self._may_retry(task):
                    return
                text = f"{session.name_of(task)} failed: the service threw {type(error).__name__}: {error}"
                response = Response(task.task_id, None, SoamException(text, error))
            case Died(how):
                if task.is_reclaimed:
                    task.is_reclaimed, task.interrupted = False, ""
                    self._changed.notify()
                    return
                if not task.interrupted and self._may_retry(task):
                    return
                limit = f"exceeded the task retry limit of {self.settings.task_retry_limit}"
                ending = task.interrupted or f"{limit}: its service instance ended ({how})"
                text = f"{session.name_of(task)} {ending}"
                response = Response(task.task_id, None, SoamException(text))
            case _:
                assert_never(answer)
        del session.tasks[task.task_id]
        self._respond(session, response)

    def _may_retry(self, task: GridTask) -> bool:
        task.deaths += 1
        self._changed.notify()
        return task.deaths <= self.settings.task_retry_limit

    def _interrupt(self, task: GridTask, text: str) -> None:
        task.interrupted = text
        if task.slot is not None and task.slot.instance is not None:
            task.slot.instance.kill()

    def _end(self, session: GridSession, text: str) -> None:
        if session.ended:
            return
        session.ended = text
        for task in session.tasks.values():
            self._interrupt(task, text)
        session.tasks.clear()

    # -- callbacks

    def _respond(self, session: GridSession, response: Response) -> None:
        fault = self.fault("response")
        do = "" if fault is None else fault.do
        if fault is not None and do == "unreadable":
            response = Response(response.task_id, response.output, response.error, fault.text)
        if fault is not None and do == "abort":
            self.abort(session, fault.text)
        elif do != "lose":
            for _ in range(2 if do == "twice" else 1):
                seconds = fault.seconds if fault is not None and do == "late" else 0.0
                self.callbacks.add(lambda: self._deliver(session, response), seconds)

    def _deliver(self, session: GridSession, response: Response) -> None:
        with self._changed:
            is_discarded = session.ended == "it was closed"
        if not is_discarded:
            self._call(lambda: session.on_response(response))

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 (kept for the test to see)
            self.callback_errors.append(error)
