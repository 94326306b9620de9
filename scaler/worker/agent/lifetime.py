"""How an agent ends: once, with an exit code or an error, after the scheduler has had its last words."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from scaler.component import Component
from scaler.errors import ScalerError, UnreachableError
from scaler.net.connection import Connector
from scaler.worker.core import Ending

FAREWELL_SECONDS = 2.0
"""An ending agent waits so long until the scheduler has acknowledged its last words."""
_POLL_SECONDS = 0.005

_log = logging.getLogger(__name__)


class Lifetime:
    """Of one agent. Belongs to the running loop, whose unexpected errors end it."""

    def __init__(self, scheduler_address: str) -> None:
        self._scheduler_address = scheduler_address
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        """Completes with the exit code, or with the error that ends the agent."""
        self.welcomed = asyncio.Event()
        """Set when the scheduler has accepted this worker for the first time."""
        loop.set_exception_handler(self._on_bug)

    def end(self, error: BaseException | None) -> None:
        """End with this error, or with 0. The first end counts."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(0)
        else:
            self.ended.set_exception(error)

    def obey(self, ending: Ending) -> None:
        """End as the core says."""
        if not ending.exit_code:
            _log.info("ending: %s", ending.text)
            self.end(None)
        elif ending.is_silence and not self.welcomed.is_set():
            self.end(UnreachableError(f"{self._scheduler_address}: {ending.text}"))
        else:
            self.end(ScalerError(ending.text))

    async def lead(self, component: Component, stop: Callable[[], None], close: Callable[[], Awaitable[None]]) -> int:
        """Be there until the end, which `stop` brings about when the component is told to; then `close`.

        Returns the exit code, or raises the error that ended the agent.
        """
        told = asyncio.ensure_future(component.stop.wait())
        welcome = asyncio.ensure_future(self.welcomed.wait())
        ended: asyncio.Future[Any] = self.ended
        try:
            await asyncio.wait({told, welcome, ended}, return_when=asyncio.FIRST_COMPLETED)
            if welcome.done():
                component.ready({})
                await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
            if told.done() and not self.ended.done():
                stop()
            return await self.ended
        finally:
            for waiter in (told, welcome):
                waiter.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiter
            await close()

    async def say_goodbye(self, connector: Connector) -> None:
        """Close the connection when all that was said has arrived, or after `FAREWELL_SECONDS`."""
        for _ in range(round(FAREWELL_SECONDS / _POLL_SECONDS)):
            # Acknowledgements are counted below this level and not announced, so they are asked for.
            if not (connector.connected and connector.outbox_bytes()):
                break
            await asyncio.sleep(_POLL_SECONDS)
        error = self.ended.exception() if self.ended.done() and not self.ended.cancelled() else None
        connector.close("the worker ends" if error is None else f"the worker ends: {error}")

    def _on_bug(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that nobody expected is ours: the agent ends with it."""
        error = context.get("exception")
        if isinstance(error, BaseException) and not self.ended.done():
            self.ended.set_exception(error)
        else:
            _log.error("%s", context.get("message"))
