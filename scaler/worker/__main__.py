"""`python -m scaler.worker`: start one worker from the JSON document in SCALER_WORKER_CONFIG.

The nursery is forked first, before there is any thread and while there is little to copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import sys
from typing import Any

from scaler.component import Component, report, run_component
from scaler.config.worker import LAST_WORDS_FD_VARIABLE, OWN_VARIABLES, WorkerConfig
from scaler.errors import ScalerError
from scaler.ids import new_peer_id
from scaler.processes import end_others_born_with
from scaler.protocol.messages import Role, WorkerDetails
from scaler.worker.nursery import Nursery, ProcessorSettings, start_nursery


def main() -> int:
    """Run one worker. Returns the exit code."""
    words_fd = os.environ.pop(LAST_WORDS_FD_VARIABLE, None)
    try:
        config = WorkerConfig.from_environment()
    except ScalerError as error:
        _leave_words(words_fd, error)
        return report("worker", error)
    settings = ProcessorSettings(
        garbage_collect_interval_seconds=config.garbage_collect_interval_seconds,
        trim_memory_threshold_bytes=config.trim_memory_threshold_bytes,
        preload=config.preload,
        slots=config.slots,
    )
    nursery = start_nursery(settings)
    try:
        config = dataclasses.replace(config, unit_id=_unit_id(config))
    except ScalerError as error:
        _leave_words(words_fd, error)
        nursery.close()
        return report("worker", error)

    async def work(component: Component) -> int:
        try:
            return await _work(component, config, nursery)
        except Exception as error:
            _leave_words(words_fd, error)
            raise

    try:
        return run_component("worker", config, work)
    finally:
        nursery.close()
        end_others_born_with(*OWN_VARIABLES)  # what tasks have started may have left their process groups


def _leave_words(words_fd: str | None, error: Exception) -> None:
    """Tell whoever started this process why it ends."""
    if words_fd is not None:
        text = str(error) if isinstance(error, ScalerError) else f"{type(error).__name__}: {error}"
        os.write(int(words_fd), text.encode("utf-8", "replace"))


def _unit_id(config: WorkerConfig) -> str:
    from scaler.worker.unit_id import learn_unit_id  # noqa: PLC0415 (after the fork: the nursery does not need it)

    return learn_unit_id(config, os.environ)


async def _work(component: Component, config: WorkerConfig, nursery: Nursery) -> int:
    # Imported after the fork, so that the nursery does not carry it.
    from scaler.net.versions import own_hello  # noqa: PLC0415
    from scaler.net.zeromq import ZmqConnector  # noqa: PLC0415
    from scaler.worker.agent.shell import Agent, OnTurn  # noqa: PLC0415

    details = WorkerDetails(
        manager_id=config.worker_manager_id,
        unit_id=config.unit_id,
        slots=config.slots,
        queue_size=config.per_worker_task_queue_size,
        capabilities=config.per_worker_capabilities,
    )

    def connect(on_turn: OnTurn) -> ZmqConnector:
        return ZmqConnector(
            config.scheduler_address,
            peer=new_peer_id(),
            hello=own_hello(Role.WORKER, details),
            on_turn=on_turn,
            io_threads=config.io_threads,
        )

    agent = Agent(config, nursery, connect)
    gc.freeze()  # what is there now stays: it need not be looked at again
    stop = asyncio.ensure_future(component.stop.wait())
    welcome = asyncio.ensure_future(agent.welcomed.wait())
    ended: asyncio.Future[Any] = agent.ended
    try:
        await asyncio.wait({stop, welcome, ended}, return_when=asyncio.FIRST_COMPLETED)
        if welcome.done():
            component.ready({})
            await asyncio.wait({stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        if stop.done() and not agent.ended.done():
            agent.stop()
        return await agent.ended
    finally:
        for waiter in (stop, welcome):
            waiter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiter
        await agent.close()


if __name__ == "__main__":
    sys.exit(main())
