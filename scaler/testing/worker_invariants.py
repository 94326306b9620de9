"""Invariants that hold after every step of an agent's core: an attempt is in exactly one place, and slots suffice."""

from __future__ import annotations

from scaler.offload.calls import ServiceCalls
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.state import ProcessorState


def check(executor: ExecutorBase) -> None:
    """Raise AssertionError if an invariant is violated."""
    queue = executor.queue
    begun = {item.id: item for item in queue.attempts.values() if item.executor}
    assert len(queue.attempts) == queue.waiting + len(begun)
    if isinstance(executor, ProcessorPool):
        processors = executor.processors.values()
        dispatched = {item.id: (item, each.number) for each in processors for item in each.dispatched}
        assert dispatched == {item.id: (item, item.executor) for item in begun.values()}
        assert sum(each.state is ProcessorState.ACTIVE for each in processors) <= executor.config.slots
    elif isinstance(executor, ServiceCalls):
        in_flight = executor._in_flight  # noqa: SLF001
        assert all(begun.get(call.id) is call for call in in_flight.values())
        assert len(in_flight) <= executor.config.slots
