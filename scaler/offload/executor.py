"""Interface of executors, which run an agent's tasks as calls to a service. Pure.

The agent calls all methods from a dedicated thread, one at a time; they may block. Reports may come from any thread,
including that of the method, in any order, late or repeated. The agent drops reports about unexpected calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from scaler.errors import ScalerError
from scaler.offload.call import Call
from scaler.protocol.messages import Outcome

CallKey = tuple[bytes, int]


class CallStarted(NamedTuple):
    """A call is or may be running. Its time limit counts from here, or from its submission to the service."""

    task: bytes
    attempt: int


class CallFinished(NamedTuple):
    """A call finished with a result. data: return value of `scaler.offload.job.run_call`."""

    task: bytes
    attempt: int
    data: bytes | bytearray | memoryview


class CallFailed(NamedTuple):
    """A call ended without a result. text: reason, for display.

    outcome: PROCESSOR_DIED: the process died, and the task is charged. WORKER_LOST: the task may have run to
    completion, and is charged. NOT_STARTED: the service removed the call (lost host, lost session), and no task is
    charged. TIMED_OUT, REJECTED, OBJECT_LOST: with their usual meaning.
    """

    task: bytes
    attempt: int
    outcome: Outcome
    text: str


class ExecutorDegraded(NamedTuple):
    """Why calls cannot run: one line for display, shown until an empty text clears it."""

    text: str


Report = CallStarted | CallFinished | CallFailed | ExecutorDegraded


class ExecutorError(ScalerError):
    """Calls were refused. The agent retries them with backoff and charges no task. Equal texts count as the same
    failure. taken: calls that were accepted nevertheless."""

    def __init__(self, text: str, taken: Sequence[CallKey] = ()) -> None:
        super().__init__(text)
        self.taken = tuple(taken)


class Executor(Protocol):
    """Runs calls at a service. Created by a factory `module:factory`, called with the agent's `OffloadConfig`."""

    def start(self, report: Callable[[Report], None]) -> None:
        """Prepare for calls. A ScalerError ends the agent with its text."""

    def run(self, calls: Sequence[Call]) -> None:
        """Accept a batch of calls, each of which is reported later. Raises ExecutorError."""

    def cancel(self, keys: Sequence[CallKey]) -> None:
        """Cancel calls and drop later reports. Raises ExecutorError if uncertain, which is shown but not retried."""

    def close(self) -> None:
        """Cancel all remaining calls. Called once, in any state."""
