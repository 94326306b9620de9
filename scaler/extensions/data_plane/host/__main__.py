"""`python -m scaler.extensions.data_plane.host`: run the store of this host, unless one is running."""

from __future__ import annotations

import asyncio
import os
import sys

from scaler.component import Component, report, run_component
from scaler.config.worker import WorkerConfig
from scaler.errors import ScalerError
from scaler.extensions.data_plane.host import place
from scaler.extensions.data_plane.host.server import HostStoreServer
from scaler.processes import PARENT_PID_VARIABLE
from scaler.worker.credential import take_credential


def main() -> int:
    take_credential()
    os.environ.pop(PARENT_PID_VARIABLE, None)  # the store outlives the agent that started it
    try:
        config = WorkerConfig.from_json(os.environ.pop(place.CONFIG_VARIABLE))
        file = place.take(place.file_name(config))
    except ScalerError as error:
        return report("store", error)
    if file is None:
        return 0

    async def work(component: Component) -> int:
        store = HostStoreServer(config)
        store.file = file
        component.ready({"store": store.addresses[0]})
        stop = asyncio.ensure_future(component.stop.wait())
        try:
            await asyncio.wait((stop, store.ended), return_when=asyncio.FIRST_COMPLETED)
            await store.evacuate()
            return await store.ended if store.ended.done() else 0
        finally:
            stop.cancel()
            store.close()
            file.close()

    return run_component("store", config, work, config.event_loop)


if __name__ == "__main__":
    sys.exit(main())
