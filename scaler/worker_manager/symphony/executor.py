"""Runs calls as tasks of a Symphony session; a session that is lost is replaced when the next calls come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaler.protocol.messages import Outcome
from scaler.worker.call import Call
from scaler.worker.executor import CallFailed, CallKey, ExecutorError, Report
from scaler.worker_manager.offload.config import OffloadConfig
from scaler.worker_manager.symphony.refusals import Refusals
from scaler.worker_manager.symphony.session import Place, SoamSession
from scaler.worker_manager.symphony.soam import load_library


class SymphonyExecutor:
    """An `Executor`. Nobody tells when a task starts, so time limits count from when it is sent."""

    def __init__(self, config: OffloadConfig) -> None:
        self._place = Place.of(config.executor_settings)
        self._open: Callable[[], SoamSession] | None = None
        self._session: SoamSession | None = None
        self._refusals = Refusals()
        self._report: Callable[[Report], None] = lambda _: None

    def start(self, report: Callable[[Report], None]) -> None:
        """Open the session. Raises ConfigError, and ExecutorError when Symphony does not let us in."""
        self._report = report
        soamapi = load_library()
        soamapi.initialize()
        self._open = lambda: SoamSession(soamapi, self._place, report)
        self._session = self._open()

    def run(self, calls: Sequence[Call]) -> None:
        assert self._open is not None, "run comes after start"
        if self._session is None or self._session.lost:
            self.close()
            self._session = self._open()
        tried = self._session.send(self._refusals.order(calls))
        given_up = self._refusals.note(calls, tried)
        for key, why in given_up.items():
            self._report(CallFailed(*key, Outcome.REJECTED, f"Symphony does not take the task: {why}"))
        settled = [key for key, refusal in tried.items() if refusal is None or key in given_up]
        if len(settled) < len(calls):
            texts = [refusal.text for refusal in tried.values() if refusal is not None]
            raise ExecutorError(f"Symphony did not take tasks: {texts[-1]}", settled)

    def cancel(self, keys: Sequence[CallKey]) -> None:
        if self._session is not None:
            self._session.kill(keys)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
