"""The agent as a component: connects to the scheduler, says that it is ready, and ends in order."""

from __future__ import annotations

import gc
from collections.abc import Callable

from scaler.component import Component, run_component
from scaler.config.worker import WorkerConfig
from scaler.ids import new_peer_id
from scaler.logs import identify
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.protocol.messages import Role, WorkerDetails
from scaler.worker.agent.shell import Agent, OnEvents
from scaler.worker.fork_server import ForkServer


def run_agent(config: WorkerConfig, fork_server: ForkServer, complain: Callable[[Exception], None]) -> int:
    """Run an agent until it ends, and return the exit code. complain: told the error that ends it, if one does."""

    async def work(component: Component) -> int:
        try:
            return await _work(component, config, fork_server)
        except Exception as error:
            complain(error)
            raise

    return run_component("worker", config, work, config.event_loop)


async def _work(component: Component, config: WorkerConfig, fork_server: ForkServer) -> int:
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

    agent = Agent(config, fork_server, connect)
    gc.freeze()  # what is there now stays: it need not be looked at again
    return await agent.life.lead(component, agent.stop, agent.close)
