"""Limits the memory of processors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from scaler.extensions.resources.limits import ContainerMemory, MemoryLimits
from scaler.extensions.resources.memory import KernelKills, MemoryWatch
from scaler.host import memory_cgroup
from scaler.worker.agent import events as e
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import Agent
from scaler.worker.agent.state import ProcessorState


def limit_memory(agent: Agent) -> None:
    pool = agent.executor
    if not isinstance(pool, ProcessorPool):
        return
    limits = MemoryLimits.of(agent.config)

    def report(usage: Mapping[int, int], container: ContainerMemory | None) -> None:
        if agent.ended.done():
            return
        states = {number: processor.state for number, processor in pool.processors.items()}
        ending = ProcessorState.ENDING
        alive = {number: used for number, used in usage.items() if states.get(number, ending) is not ending}
        agent.take([e.MemoryExceeded(limits.excesses(alive, container))])

    loop = asyncio.get_running_loop()
    kills = KernelKills(loop)
    watch = MemoryWatch(loop, limits, None if agent.config.memory_limit_bytes else memory_cgroup(), agent.pids, report)
    agent.why_killed.append(kills.evidence)
    agent.on_close += [watch.close, kills.close]
