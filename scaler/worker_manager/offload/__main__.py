"""`python -m scaler.worker_manager.offload`: start one agent whose tasks run elsewhere, from the JSON document in
SCALER_WORKER_CONFIG."""

from __future__ import annotations

import os
import sys

from scaler.component import Component, report, run_component
from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WORKER_CONFIG_VARIABLE
from scaler.errors import ScalerError
from scaler.ids import new_peer_id
from scaler.logs import identify
from scaler.net.connector import SocketConnector
from scaler.net.versions import own_hello
from scaler.object_storage.client import StorageClient
from scaler.processes import end_others_born_with
from scaler.protocol.messages import Role, WorkerDetails
from scaler.worker_manager.offload.agent import OffloadAgent, OnEvents
from scaler.worker_manager.offload.config import OffloadConfig, load_executor


class _Words:
    """Where the process that started this one finds what it says last: a file that is written anew each time."""

    def __init__(self, descriptor: str | None) -> None:
        self._descriptor = None if descriptor is None else int(descriptor)

    def say(self, text: str) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode("utf-8", "replace"), 0)

    def end_with(self, error: BaseException) -> None:
        self.say(str(error) if isinstance(error, ScalerError) else f"{type(error).__name__}: {error}")


def main() -> int:
    """Run one agent. Returns the exit code."""
    words = _Words(os.environ.pop(LAST_WORDS_FD_VARIABLE, None))
    try:
        config = OffloadConfig.from_environment()
    except ScalerError as error:
        words.end_with(error)
        return report("worker", error)

    async def work(component: Component) -> int:
        try:
            return await _work(component, config, words)
        except Exception as error:
            words.end_with(error)
            raise

    try:
        return run_component("worker", config, work, config.event_loop)
    finally:
        end_others_born_with(WORKER_CONFIG_VARIABLE)  # what the executor has started here


async def _work(component: Component, config: OffloadConfig, words: _Words) -> int:
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

    def connect_storage(address: str) -> StorageClient:
        return StorageClient.connected_to(address, new_peer_id(), Role.WORKER, io_threads=config.io_threads)

    agent = OffloadAgent(config, load_executor(config), connect, connect_storage, words.say)
    return await agent.life.lead(component, agent.stop, agent.close)


if __name__ == "__main__":
    sys.exit(main())
