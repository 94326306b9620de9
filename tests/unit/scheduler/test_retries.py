"""Retries after exceptions and worker losses: counted separately, delayed, and shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.explain.core import explain
from scaler.protocol.messages import Outcome
from scaler.scheduler.core.state import Delayed
from scaler.serialization import dump_retry_on
from scaler.serialization.exceptions import dump_exception
from tests.unit.scheduler.test_events import Watched, rows

RAISED = dump_exception(ValueError("no luck"), "")
ON_VALUE_ERRORS = dump_retry_on(ValueError)
LONG_SECONDS = 5.0


class Trial:
    """One task on a worker, whose attempts end as scripted."""

    def __init__(self, **spec: Any) -> None:
        self.watched = Watched()
        self.cluster = self.watched.cluster
        (self.task,) = self.cluster.submit(self.watched.client, retry_on=ON_VALUE_ERRORS, **spec)

    def why(self) -> str:
        return explain(self.cluster.state, self.task, self.cluster.now)

    def wait(self, seconds: float) -> None:
        self.cluster.wait(seconds, alive=[self.watched.client, self.watched.worker])

    def raises(self) -> None:
        """End an attempt with an exception of retry_on, without waiting for the next one."""
        self.cluster.finish(self.watched.worker, self.task, outcome=Outcome.EXCEPTION_TO_RETRY, payload=RAISED)

    def dies(self) -> None:
        """End an attempt with its process, without waiting for the next one."""
        self.cluster.finish(self.watched.worker, self.task, outcome=Outcome.PROCESSOR_DIED, payload=b"killed")

    def outcome(self) -> Outcome | None:
        return self.cluster.outcome(self.watched.client, self.task)

    def delay(self) -> float:
        """Return how long the task waits now."""
        living = self.cluster.state.living_task(self.task)
        assert living is not None
        assert type(living.state) is Delayed
        return living.state.until - self.cluster.state.own_time(self.cluster.now)


def test_exceptions_and_losses_have_separate_limits() -> None:
    trial = Trial(retries=2)
    for end in (trial.raises, trial.dies, trial.raises, trial.dies):
        end()
        assert trial.outcome() is None
        trial.wait(2.0)
    trial.raises()
    assert trial.outcome() is Outcome.EXCEPTION


def test_task_fails_after_more_process_losses_than_allowed() -> None:
    trial = Trial(retries=5, losses=2)  # one loss, as counted on the wire
    trial.dies()
    trial.wait(2.0)
    for _ in range(2):
        trial.raises()
        trial.wait(2.0)
    trial.dies()
    assert trial.outcome() is Outcome.PROCESSOR_DIED
    (row,) = rows(trial.watched.report())
    assert ", 4 attempts, losses=1\n" in row["text"]


def test_waiting_task_reports_delay_next_attempt_and_reason() -> None:
    trial = Trial(retries=3, retry_delays=(LONG_SECONDS,))
    trial.raises()
    trial.wait(1.0)
    assert trial.why() == (
        "it waits 4.0 s before attempt 2 of 4 (retries: 1 of 3, losses: 0 of 3), "
        "after attempt 1 on manager-1 (host, pid 1): it raised ValueError: no luck"
    )
    assert trial.cluster.on(trial.watched.worker) == [], "the waiting task occupies no slot"
    trial.wait(4.5)
    assert trial.cluster.on(trial.watched.worker) == [trial.task]
    trial.dies()
    trial.wait(2.0)
    assert "; this is attempt 3 of 5 (retries: 1 of 3, losses: 1 of 3), after attempt 2 " in trial.why()


def test_each_retry_has_a_delay_and_the_last_one_repeats() -> None:
    trial = Trial(retries=4, retry_delays=(1.0, 3.0))
    for seconds in (1.0, 3.0, 3.0, 3.0):
        trial.raises()
        assert trial.delay() == pytest.approx(seconds)
        trial.wait(seconds + 0.5)


@given(st.floats(0, 100), st.floats(0, 1))
def test_jitter_shortens_a_delay_by_at_most_its_share(seconds: float, jitter: float) -> None:
    trial = Trial(retries=3, retry_delays=(10.0 + seconds,), retry_jitter=jitter)
    trial.raises()
    least = (10.0 + seconds) * (1 - jitter)
    assert least - 1e-6 <= trial.delay() <= 10.0 + seconds + 1e-6
