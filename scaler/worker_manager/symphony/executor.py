"""Runs calls as tasks of a Symphony session. A lost session is replaced on the next calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from scaler.errors import ConfigError
from scaler.paths import local_path
from scaler.processes import absolute
from scaler.protocol.messages import Outcome
from scaler.worker.call import Call
from scaler.worker.executor import CallFailed, CallKey, ExecutorError, Report
from scaler.worker_manager.offload import OffloadBackend, OffloadConfig, document_of
from scaler.worker_manager.symphony import SymphonyConfig
from scaler.worker_manager.symphony.session import (
    LIBRARY,
    MISSING,
    CallRefusal,
    SoamSession,
    load_library,
    read_password,
)

EXECUTOR = "scaler.worker_manager.symphony.executor:SymphonyExecutor"
MOST_TASKS = 100_000  # maximum tasks in the session if max_task_concurrency sets no limit
MAX_REFUSALS_OF_ONE = 3


def make_backend(config: SymphonyConfig) -> OffloadBackend:
    """Raises ConfigError without soamapi, and for a password file that is missing, empty, or not private."""
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
        """Record outcomes (None: accepted). Return the calls to fail, and why."""
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
                given_up[key] = f"{refusal.text} ({count} times, while it accepted others)"
            else:
                counts[key] = count
        self._counts = counts
        return given_up


class SymphonyExecutor:
    """An `Executor`. Symphony does not report the start of a task, so time limits count from its submission."""

    def __init__(self, config: OffloadConfig) -> None:
        self._config = config.settings(SymphonyConfig)
        self._open: Callable[[], SoamSession] | None = None
        self._session: SoamSession | None = None
        self._refusals = RefusalCounts()
        self._report: Callable[[Report], None] = lambda _: None

    def start(self, report: Callable[[Report], None]) -> None:
        self._report = report
        soamapi = load_library()
        soamapi.initialize()
        self._open = lambda: SoamSession(soamapi, self._config, report)
        self._session = self._open()

    def run(self, calls: Sequence[Call]) -> None:
        assert self._open is not None, "run comes after start"
        if self._session is None or self._session.lost:
            self.close()
            self._session = self._open()
        tried = self._session.send(self._refusals.order(calls))
        given_up = self._refusals.note(calls, tried)
        for key, why in given_up.items():
            self._report(CallFailed(*key, Outcome.REJECTED, f"Symphony rejects the task: {why}"))
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
