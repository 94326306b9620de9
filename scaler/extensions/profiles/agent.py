"""Forwards processors' samples to the scheduler, and samples the processors' memory."""

from __future__ import annotations

import asyncio
from itertools import islice

from scaler.extensions.profiles.usage import MemoryUsage, ProcessorSample
from scaler.protocol.messages import TasksProfiled
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import Agent
from scaler.worker.agent.state import PooledProcessor
from scaler.worker.frames import Note, Snapshot, ToAgent

SAMPLE_SECONDS = 0.5


class MemorySampler:
    def __init__(self, agent: Agent, pool: ProcessorPool) -> None:
        self._agent = agent
        self._pool = pool
        self._usage = MemoryUsage()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._sample)
        agent.on_heartbeat.append(self._usage.complete)
        agent.on_close.append(lambda: self._timer.cancel())  # noqa: PLW0108 (the timer changes)

    def _sample(self) -> None:
        self._timer = self._loop.call_later(SAMPLE_SECONDS, self._sample)
        found: dict[int, ProcessorSample] = {}
        for number, (pid, page) in self._agent.processors().items():
            processor = self._pool.processors.get(number)
            memory = resident_memory(pid)
            if memory is not None:
                functions = ("", set[str]()) if processor is None else take_functions(processor, page.snapshot())
                found[number] = ProcessorSample(*memory, *functions)
        if found:
            self._usage.take(found)


def take_functions(processor: PooledProcessor, snapshot: Snapshot) -> tuple[str, set[str]]:
    """Return the running function of a processor, or "", and the functions finished there since the last call."""
    reported = max(0, snapshot.finished - processor.results)
    dispatched = list(islice(processor.dispatched, reported + 1))
    processor.ended.update(item.spec for item in dispatched[:reported])
    ended, processor.ended = {spec.wire.name for spec in processor.ended}, set()
    is_running = snapshot.begun > snapshot.finished and len(dispatched) > reported
    return dispatched[reported].spec.wire.name if is_running else "", ended


def resident_memory(pid: int) -> tuple[int, int] | None:
    """Return the resident and peak resident bytes of a process; None if it has exited."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:  # noqa: PTH123 (pathlib costs as much as the kernel)
            status = file.read()
    except OSError:
        return None
    _, _, rest = status.partition(b"VmHWM:")
    peak, _, rest = rest.partition(b" kB")
    _, _, rest = rest.partition(b"VmRSS:")
    resident, found, _ = rest.partition(b" kB")
    return (1024 * int(resident), 1024 * int(peak)) if found else None  # an exiting process has no memory


MAX_PROFILE_BYTES = 512 * 1024


def start_profiles(agent: Agent) -> None:
    def forward(_number: int, note: Note, _descriptors: list[int]) -> None:
        if len(note.text) <= MAX_PROFILE_BYTES:
            agent.send_output(TasksProfiled(note.identifier, note.text))

    agent.on_note[ToAgent.PROFILED] = forward
    if isinstance(agent.executor, ProcessorPool):
        MemorySampler(agent, agent.executor)
