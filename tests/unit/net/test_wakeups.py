"""Wakeups, on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from scaler.net.wakeups import Wakeups

Factory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["builtin", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Factory:
    factory: Factory = request.param
    return factory


def test_earlier_wakeup_replaces_a_later_one(loop_factory: Factory) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        wakeups = Wakeups(loop, woken.set)
        wakeups.at(loop.time() + 60)
        wakeups.at(loop.time() + 0.001)
        async with asyncio.timeout(5):
            await woken.wait()
        wakeups.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
