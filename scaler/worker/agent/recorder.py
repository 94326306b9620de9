"""The agent's black box: see `scaler.recorder`.

`python -m scaler.worker.agent.recorder FILE` steps a new core through a file and checks its laws after every step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from scaler import recorder
from scaler.config.worker import WorkerConfig
from scaler.net.connection import Received
from scaler.protocol.messages import Outcome, Run
from scaler.recorder import ROW_BYTES, Recorder
from scaler.worker.agent.calls import ServiceCalls
from scaler.worker.agent.core import AgentCore, TaskExecutor
from scaler.worker.agent.events import AgentInput, ResultsReceived
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.frames import Results, Snapshot, ToAgent

MAX_STEPS = 2_000
MAX_BYTES = 1024 * 1024
"""Less than the scheduler keeps: a host may have many agents."""
RECORDS = (*get_args(AgentInput), Outcome, Results, Snapshot, ToAgent)
"""What the core's inputs are made of."""
_EXECUTORS: dict[str, type[TaskExecutor]] = {each.__name__: each for each in (ProcessorPool, ServiceCalls)}


def make_recorder(config: WorkerConfig, executor: type[TaskExecutor]) -> Recorder:
    """Make the recorder of an agent with this kind of executor."""
    return Recorder(config, _size_of, max_steps=MAX_STEPS, max_bytes=MAX_BYTES, executor=executor.__name__)


def _size_of(item: AgentInput) -> int:
    """Return roughly how many bytes an input keeps alive. Only tasks and results count by size."""
    if isinstance(item, ResultsReceived):
        return ROW_BYTES * len(item.results.rows) + len(item.results.payloads)
    if isinstance(item, Received) and isinstance(item.message, Run):
        return sum(ROW_BYTES * len(group.ids) + sum(map(len, group.payloads)) for group in item.message.groups)
    return ROW_BYTES


def replay(path: Path) -> int:
    """Step a new core through a black box; see `scaler.recorder.replay`."""

    def make_step(head: Mapping[str, Any], now: float) -> Any:
        core = AgentCore(WorkerConfig.from_json(head["config"]), _EXECUTORS[head["executor"]], now)

        def step(inputs: list[AgentInput], now: float) -> None:
            core.step(inputs, now)
            core.check()

        return step

    return recorder.replay(path, RECORDS, make_step)


if __name__ == "__main__":
    sys.exit(recorder.main("scaler.worker.agent.recorder", replay))
