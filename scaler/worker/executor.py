"""The interface of an executor: runs the tasks of an agent at a service, as calls. Pure.

The agent calls all verbs from one thread of its own, one at a time; they may block. Reports may come from any thread,
that of the verb included, in any order, late or twice: the agent drops reports about calls that it does not wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from scaler.errors import ScalerError
from scaler.protocol.messages import Outcome
from scaler.worker.call import Call

CallKey = tuple[bytes, int]


class CallStarted(NamedTuple):
    """A call runs, or may: its time limit counts from here, or from its hand-over to the service."""

    task: bytes
    attempt: int


class CallFinished(NamedTuple):
    """A call has ended with a result. data: what `scaler.worker.job.run_call` returned."""

    task: bytes
    attempt: int
    data: bytes | bytearray | memoryview


class CallFailed(NamedTuple):
    """A call has ended without a result. text: why, as display text.

    outcome: PROCESSOR_DIED: the process died by itself, and the task is charged. WORKER_LOST: it may have run to its
    end, which cannot be known; the task is charged. NOT_STARTED: the service took it away (a lost host, a lost
    session); no task is charged. TIMED_OUT, REJECTED, OBJECT_LOST: as everywhere.
    """

    task: bytes
    attempt: int
    outcome: Outcome
    text: str


class ExecutorDegraded(NamedTuple):
    """What keeps calls from running, as one line of display text; empty when it is over. Shown until then."""

    text: str


Report = CallStarted | CallFinished | CallFailed | ExecutorDegraded


class ExecutorError(ScalerError):
    """Calls were not taken. They are tried again later, less and less often, and no task is charged.

    Equal texts count as the same failure. taken: those of the calls that were taken all the same.
    """

    def __init__(self, text: str, taken: Sequence[CallKey] = ()) -> None:
        super().__init__(text)
        self.taken = tuple(taken)


class Executor(Protocol):
    """Runs calls somewhere else. A factory makes it: `module:factory`, called with the agent's `OffloadConfig`."""

    def start(self, report: Callable[[Report], None]) -> None:
        """Get ready, before the first call. A ScalerError ends the agent with its text."""

    def run(self, calls: Sequence[Call]) -> None:
        """Take calls: all that arrived together, or a lone one at once. Reports each later. Raises ExecutorError."""

    def cancel(self, keys: Sequence[CallKey]) -> None:
        """End calls, and drop later reports. Raises ExecutorError when uncertain, which is shown, not retried."""

    def close(self) -> None:
        """End what is left, and leave nothing running. Called once, whatever happened before."""
