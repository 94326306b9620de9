"""A component for the tests of `scaler.component`. Arguments: its action and its event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

from scaler.component import Component, run_component
from scaler.config.servers import scheduler_model
from scaler.errors import ConfigError, LimitError


async def main(component: Component) -> int:
    what = sys.argv[1]
    if what == "usage":
        raise ConfigError("that\ncannot be")
    if what == "failure":
        raise LimitError("no more")
    if what == "bug":
        raise KeyError("ours")
    if what == "stuck":
        signal.raise_signal(signal.SIGTERM)
    component.ready({"scheduler": "tcp://127.0.0.1:1", "monitor": "tcp://127.0.0.1:3"})
    if what == "stuck":
        time.sleep(60)  # noqa: ASYNC251 (the test needs a blocked event loop)
    await component.stop.wait()
    logging.getLogger("test").warning("stopped\x1b[31m by %s", type(asyncio.get_running_loop()).__module__)
    return 7


if __name__ == "__main__":
    config = scheduler_model()(
        bind_address="tcp://127.0.0.1:1",
        event_loop=sys.argv[2],  # type: ignore[arg-type]
    )
    sys.exit(run_component("scheduler", config, main, config.event_loop))
