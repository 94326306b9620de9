"""What a restarted scheduler needs of a step: the effects of its inputs, in their order. Pure.

Effects and not inputs are journaled, so that whatever reads them needs to know none of the rules that led to them.
Clients inside tasks are left out: they come back with their workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scaler.net.identity import Identity
from scaler.protocol.messages import Finished, Hello, Submit
from scaler.scheduler.core.durable import Label


class ClientJoined(NamedTuple):
    """A client has opened a session."""

    client: bytes
    hello: Hello
    identity: Identity


class ClientLeft(NamedTuple):
    """Everything of a client was dropped."""

    client: bytes


class Submitted(NamedTuple):
    """A client sent tasks and functions. Those that the scheduler did not accept end in a Finished."""

    client: bytes
    message: Submit


class Ended(NamedTuple):
    """Tasks of a client ended; the scheduler retains their results until they are dropped."""

    client: bytes
    message: Finished


class ValueRetained(NamedTuple):
    """The value of a task whose client did not want it: other tasks may need it. Comes before the task's Ended."""

    task: bytes
    payload: bytes


class FailedInput(NamedTuple):
    """What those that need a failed task name as their failed input: function and id. Before the task's Ended."""

    task: bytes
    function: str
    failed: bytes


class Dropped(NamedTuple):
    """Retained results and functions that nothing needs any more."""

    ids: list[bytes]


class Dispatched(NamedTuple):
    """A task that may start once only was sent to a worker."""

    task: bytes
    worker: bytes


class GivenBack(NamedTuple):
    """A worker gave a dispatched task back that had not started."""

    task: bytes


class Labelled(NamedTuple):
    """Only in snapshots: what a durable session knows of its tasks, in the order of their submission."""

    client: bytes
    labels: Mapping[bytes, Label]


Change = (
    ClientJoined
    | ClientLeft
    | Submitted
    | Ended
    | ValueRetained
    | FailedInput
    | Dropped
    | Dispatched
    | GivenBack
    | Labelled
)


class Recovered(NamedTuple):
    """Input: what the journal has of one client. results: of tasks that ended. submits: the tasks that did not.

    values and failed_inputs: by task, as in `ValueRetained` and `FailedInput`. dispatched: workers by task. labels: of
    the tasks of a durable session, in the order of their submission.
    """

    client: bytes
    hello: Hello
    identity: Identity
    submits: list[Submit]
    results: list[Finished]
    values: dict[bytes, bytes]
    failed_inputs: dict[bytes, tuple[str, bytes]]
    dispatched: dict[bytes, bytes]
    labels: dict[bytes, Label]


class ClientsGone(NamedTuple):
    """Input: clients that had left before the scheduler ended. It may not have told the storage."""

    ids: list[bytes]


class Changes:
    """Collects the changes of a step. A scheduler without a journal has none."""

    __slots__ = ("collected",)

    def __init__(self) -> None:
        self.collected: list[Change] = []

    def add(self, change: Change) -> None:
        self.collected.append(change)

    def dropped(self, ids: Iterable[bytes]) -> None:
        last = self.collected[-1] if self.collected else None
        if isinstance(last, Dropped):
            last.ids.extend(ids)
        else:
            self.collected.append(Dropped([*ids]))

    def take(self) -> list[Change]:
        """Return the changes since the last time."""
        taken, self.collected = self.collected, []
        return taken
