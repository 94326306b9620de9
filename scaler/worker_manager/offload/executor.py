"""What runs the tasks of an offload agent: the verbs that the agent needs of it, and what it reports.

The agent calls all verbs from one thread of its own, one at a time; they may block. Reports may come from any thread,
the one of the verb included, in any order, late or twice: the agent drops what is about calls that it does not wait
for (any more).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from scaler.errors import ConfigError, ScalerError
from scaler.protocol.messages import Outcome
from scaler.worker.call import Call
from scaler.worker_manager.offload.config import OffloadConfig

CallKey = tuple[bytes, int]
"""A call's task and attempt."""
FAILURES = frozenset(
    {
        Outcome.PROCESSOR_DIED,
        Outcome.WORKER_LOST,
        Outcome.NOT_STARTED,
        Outcome.TIMED_OUT,
        Outcome.REJECTED,
        Outcome.OBJECT_LOST,
    }
)
"""How a call may fail without a result."""


@dataclass(frozen=True, slots=True)
class Started:
    """A call runs now, or may: its time limit counts from here.

    An executor that cannot see when a call starts says this when it has handed the call on.
    """

    task: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A call has ended with a result. data: what `scaler.worker.job.run_call` returned."""

    task: bytes
    attempt: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Failed:
    """A call has ended without a result. outcome: one of `FAILURES`; text: why, for people.

    PROCESSOR_DIED: the process died by itself, and the task is charged. WORKER_LOST: it may have run to its end, nobody
    knows; the task is charged. NOT_STARTED: the service took it away (a lost host, a lost session); nobody is charged.
    """

    task: bytes
    attempt: int
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps calls from running, for people, as one line; empty when it is over. Shown until then."""

    text: str


Report = Started | Finished | Failed | Trouble


class ExecutorError(ScalerError):
    """Calls could not be handed on. They are tried again later, less and less often, and nobody is charged.

    Texts that are spelled alike count as the same failure. taken: those of the calls that were handed on all the same.
    """

    def __init__(self, text: str, taken: Sequence[CallKey] = ()) -> None:
        super().__init__(text)
        self.taken = tuple(taken)


class Executor(Protocol):
    """Runs calls somewhere else. A factory makes it: `module:factory`, called with the agent's `OffloadConfig`."""

    def start(self, report: Callable[[Report], None]) -> None:
        """Get ready, before the first call. A ScalerError ends the agent with its text."""

    def run(self, calls: Sequence[Call]) -> None:
        """Hand these on: all that have arrived together, a lone one at once. Every one of them is reported later.

        Raises ExecutorError.
        """

    def cancel(self, keys: Sequence[CallKey]) -> None:
        """End these, which have been handed on and may have ended meanwhile; a report for them is dropped.

        Raises ExecutorError when that is not certain; it is shown, and not tried again.
        """

    def close(self) -> None:
        """End what is left, and leave nothing running. Called once, whatever happened before."""


def load_executor(config: OffloadConfig) -> Executor:
    """Make the executor that the configuration names. Raises ConfigError, or what the factory raises."""
    module, _, factory = config.executor.partition(":")
    try:
        make = cast("Callable[[OffloadConfig], Executor]", getattr(importlib.import_module(module), factory))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"executor {config.executor!r} cannot be loaded as module:factory: {error}") from error
    return make(config)
