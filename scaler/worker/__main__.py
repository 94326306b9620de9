"""`python -m scaler.worker`: start one worker from the JSON document in SCALER_WORKER_CONFIG.

The nursery is forked first, before there is any thread and while there is little to copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from typing import Any

from scaler.component import Component, report, run_component
from scaler.config.worker import WorkerConfig
from scaler.errors import ScalerError
from scaler.worker.nursery import Nursery, ProcessorSettings, start_nursery


def main() -> int:
    """Run one worker. Returns the exit code."""
    try:
        config = WorkerConfig.from_environment()
    except ScalerError as error:
        return report("worker", error)
    settings = ProcessorSettings(
        garbage_collect_interval_seconds=config.garbage_collect_interval_seconds,
        trim_memory_threshold_bytes=config.trim_memory_threshold_bytes,
        preload=config.preload,
    )
    nursery = start_nursery(settings)
    try:
        return run_component("worker", config, lambda component: _work(component, config, nursery))
    finally:
        nursery.close()


async def _work(component: Component, config: WorkerConfig, nursery: Nursery) -> int:
    # Imported after the fork, so that the nursery does not carry it.
    from scaler.worker.agent.connect import connect  # noqa: PLC0415
    from scaler.worker.agent.shell import Agent  # noqa: PLC0415

    agent = Agent(config, nursery, lambda on_turn: connect(config, on_turn))
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
