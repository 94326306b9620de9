"""The simulated world with the cores of agents and storage, and faults planted in them and in sessions."""

from __future__ import annotations

import pytest

from scaler.errors import ProtocolError
from scaler.object_storage.objects import StorageTable
from scaler.protocol.session import Session, UnreadableError
from scaler.scheduler.core.cluster import ObjectTable
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.core import AgentCore
from scaler.worker.agent.pool import ProcessorPool
from tests.short_forms import short_form
from tests.simulation.planting import Fault, plant
from tests.simulation.worlds import run

FAULTS: dict[str, Fault] = {
    "a repeated envelope is delivered again": Fault(
        Session,
        "receive",
        "if sequence <= self.received:",
        "if False:",
        "come in order|ended twice|runs again|starts after",
    ),
    "messages in flight when a connection breaks are not repeated": Fault(
        Session,
        "disconnect",
        "self._in_flight.extend(self._waiting)",
        "self._in_flight = deque(self._waiting)",
        "cannot continue|wait|in the world",
    ),
    "a resumed session drops messages that the other side lacks": Fault(
        Session, "resume", "and self._waiting[0].sequence <= acknowledged", "", "cannot continue|wait|in the world"
    ),
    "an agent forgets tasks that it has reclaimed from a processor": Fault(
        ProcessorPool, "_reclaimed", "self.queue.put_back(back)", "pass", "in the world"
    ),
    "an agent does not read a dead processor's results": Fault(
        ProcessorPool,
        "_reclaimed",
        "for results, sent in answer.results:",
        "for results, sent in ():",
        "may start once|wait|runs again",
    ),
    "an agent gives a task the result of the next task": Fault(
        ProcessorPool, "_take_results", "at += size", "at += 0", "own value"
    ),
    "an agent counts a page's results twice": Fault(
        ProcessorPool,
        "_take_results",
        "2**32 if sent else max(taken, len(results.rows))",
        "0",
        "no task or client needs|once|wait",
    ),
    "an agent reports a wrong attempt": Fault(
        ExecutorBase, "ended", "item.attempt, outcome, payload", "item.attempt + 1, outcome, payload", "wait"
    ),
    "an agent does not answer a recall": Fault(
        AgentCore,
        "_recall",
        "self.executor.give_back([item for item in here if not item.executor])",
        "pass",
        "runs again",
    ),
    "the storage forgets nothing": Fault(
        StorageTable, "forget", "return self.drop(object_id)", "return []", "no task or client needs"
    ),
    "the scheduler lets the storage forget a result in use": Fault(
        ObjectTable,
        "_settle",
        "if entry.pins or entry.uses:",
        "if entry.pins:",
        "^b|inputs|is kept until|no object is lost|is there while",
    ),
    "the scheduler keeps objects that no task uses anymore": Fault(
        ObjectTable, "unuse", "self._settle(identifier, entry)", "pass", "is kept unnecessarily"
    ),
    "the scheduler forgets objects that a client has not released": Fault(
        ObjectTable, "_settle", "if entry.pins or entry.uses:", "if entry.uses:", " counts "
    ),
}


@pytest.mark.parametrize("seeds", short_form([range(1), range(1, 4)]), ids=str)
@pytest.mark.parametrize("kind", ["agents fail", "connections break", "the storage loses everything"])
def test_every_task_has_one_correct_outcome(kind: str, seeds: range) -> None:
    run(seeds, kind)


@pytest.mark.long
def test_simulation_detects_a_planted_fault(fault_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[fault_name]
    plant(fault, monkeypatch)
    with pytest.raises((AssertionError, KeyError, ProtocolError, UnreadableError), match=fault.words):
        run(range(6), "agents fail", "connections break")
