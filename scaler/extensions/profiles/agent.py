"""Forwards the samples of processors to the scheduler, and samples their memory."""

from __future__ import annotations

from scaler.extensions.profiles.memory_samples import MemorySampler
from scaler.protocol.messages import TasksProfiled
from scaler.worker.agent.pool import ProcessorPool
from scaler.worker.agent.shell import Agent
from scaler.worker.frames import Note, ToAgent

MAX_PROFILE_BYTES = 512 * 1024


def start_profiles(agent: Agent) -> None:
    def forward(note: Note) -> None:
        if len(note.text) <= MAX_PROFILE_BYTES:
            agent.send_output(TasksProfiled(note.identifier, note.text))

    agent.on_note[ToAgent.PROFILED] = forward
    if isinstance(agent.executor, ProcessorPool):
        MemorySampler(agent, agent.executor)
