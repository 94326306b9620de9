"""The agent as a component: how its process begins and ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from scaler.component import Component, run_component
from scaler.config.worker import WorkerConfig
from scaler.errors import ScalerError
from scaler.ids import new_peer_id
from scaler.logs import identify
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.protocol.messages import Role, WorkerDetails
from scaler.worker.agent.shell import Agent, AgentBackend, OnEvents


class StatusFile:
    """The file in which this process's manager reads what keeps the agent from working, or why it ended."""

    def __init__(self, descriptor: str | None) -> None:
        self._descriptor = None if descriptor is None else int(descriptor)

    def write(self, text: str) -> None:
        """Replace its content."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode("utf-8", "replace"), 0)

    def write_error(self, error: Exception) -> None:
        self.write(str(error) if isinstance(error, ScalerError) else f"{type(error).__name__}: {error}")


def run_agent(config: WorkerConfig, make_backend: Callable[[], AgentBackend], status: StatusFile) -> int:
    """Run an agent until it ends, and return the exit code. The error that ends it goes to the status file, too."""

    async def work(component: Component) -> int:
        try:
            return await _work(component, config, make_backend())
        except Exception as error:
            status.write_error(error)
            raise

    return run_component("worker", config, work, config.event_loop)


async def _work(component: Component, config: WorkerConfig, backend: AgentBackend) -> int:
    details = WorkerDetails(
        manager_id=config.worker_manager_id,
        unit_id=config.unit_id,
        slots=config.slots,
        queue_size=config.per_worker_task_queue_size,
        capabilities=config.per_worker_capabilities,
    )
    peer = new_peer_id()
    identify(manager=config.worker_manager_id, unit=config.unit_id, worker=peer.hex())

    def connect(on_events: OnEvents) -> SocketConnector:
        return SocketConnector(
            config.scheduler_address,
            peer=peer,
            hello=own_hello(Role.WORKER, details),
            on_events=on_events,
            io_threads=config.io_threads,
        )

    agent = Agent(config, backend, connect)
    gc.freeze()  # what exists now stays: the collector need not visit it again
    return await agent.run(component)
