"""The agent's black box; see `scaler.recorder`. `python -m scaler.worker.agent.recorder FILE` replays a file and
checks invariants after every step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from scaler import recorder
from scaler.config.worker import WorkerConfig
from scaler.net.connection import Received
from scaler.protocol.messages import Outcome, Relay, Run
from scaler.recorder import ROW_BYTES, Recorder
from scaler.worker.agent.base import ExecutorBase
from scaler.worker.agent.calls import CallInput, ServiceCalls
from scaler.worker.agent.core import AgentCore
from scaler.worker.agent.events import (
    AgentInput,
    CoreInput,
    ProcessorEvent,
    ProcessorInput,
    ResultsReceived,
    TasksReclaimed,
)
from scaler.worker.agent.limits import ContainerMemory
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.frames import Results, Snapshot

MAX_STEPS = 2_000
MAX_BYTES = 1024 * 1024
"""Smaller than the scheduler's limit, because a host may have many agents."""
_INPUTS = get_args(CoreInput | ProcessorInput | CallInput)
RECORDS = (*_INPUTS, ContainerMemory, Outcome, ProcessorEvent, Results, Snapshot)
_EXECUTORS = {each.__name__: each for each in (ProcessorPool, ServiceCalls)}


def make_recorder(config: WorkerConfig, executor: type[ExecutorBase]) -> Recorder:
    # Drop settings that only service agents have: the core does not use them, and a replay could not read them.
    config = WorkerConfig(**{each.name: getattr(config, each.name) for each in fields(WorkerConfig)})
    return Recorder(config, _size_of, max_steps=MAX_STEPS, max_bytes=MAX_BYTES, executor=executor.__name__)


def _size_of(item: AgentInput) -> int:
    if isinstance(item, ResultsReceived):
        return ROW_BYTES * len(item.results.rows) + len(item.results.payloads)
    if isinstance(item, Received) and isinstance(item.message, Run):
        size = sum(ROW_BYTES + len(payload) for _, payload in item.message.functions)
        for group in item.message.groups:
            size += ROW_BYTES * len(group.payloads) + sum(map(len, group.payloads))
            size += sum([len(value) for values in group.inputs for value in values])
        return size
    if isinstance(item, Received) and isinstance(item.message, Relay):
        return ROW_BYTES + len(item.message.body)
    if isinstance(item, TasksReclaimed):
        return ROW_BYTES + sum(ROW_BYTES * len(each.rows) + len(each.payloads) for each, _ in item.results)
    return ROW_BYTES


def _make_core(head: Mapping[str, Any], now: float) -> Any:
    core = AgentCore(WorkerConfig.from_json(head["config"]), _EXECUTORS[head["executor"]], now)
    return core.step, core.check


def replay(path: Path) -> int:
    return recorder.replay(path, RECORDS, _make_core)


if __name__ == "__main__":
    sys.exit(recorder.main("scaler.worker.agent.recorder", replay))
