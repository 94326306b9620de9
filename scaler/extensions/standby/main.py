"""The process of a scheduler with a state directory, which alternates between serving and standing by."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from scaler.component import Component
from scaler.errors import UnreachableError
from scaler.extensions.standby.lease import Lease
from scaler.extensions.standby.term import Term, greeted, read_term, write_term
from scaler.net.server_access import ServerAccess
from scaler.protocol.messages import Server

ASK_SECONDS = 2.0
_log = logging.getLogger(__name__)


async def main(config: Any, component: Component, serve: Callable[[Any, Any], Awaitable[int]]) -> int:
    if not config.state_directory:
        return await serve(config, component)
    while True:
        term = read_term(config)
        if term is None:
            term = Term(serves=not config.standby_of)
        if term.serves and await _is_replaced(config, term, component):
            term = term._replace(serves=False)
            write_term(config, term)
        if not term.serves and not await _promoted(config, term, component):
            return 0
        if component.stop.is_set():
            return 0
        code = await _served(config, component, serve)
        if component.stop.is_set():
            return code


async def _served(config: Any, component: Component, serve: Callable[[Any, Any], Awaitable[int]]) -> int:
    """Serve until this process ends or another scheduler takes over."""
    stop, ending = asyncio.Event(), asyncio.ensure_future(component.stop.wait())
    ending.add_done_callback(lambda _: stop.set())
    try:
        return await serve(config, SimpleNamespace(ready=component.ready, stop=stop))
    finally:
        ending.cancel()


async def _is_replaced(config: Any, term: Term, component: Component) -> bool:
    """Return whether another scheduler took over while this one was down, according to the lease or the standby."""
    if (lease := Lease.of(config)) is not None:
        with contextlib.closing(lease):
            while (why := await lease.renew(term.epoch)) is not None and not component.stop.is_set():
                _log.warning("waiting for the lease: %s", why)
                if lease.is_lost:
                    return True
                await asyncio.sleep(ASK_SECONDS)
    elif term.partner:
        with contextlib.closing(ServerAccess(config, Server.SCHEDULER, [config.bind_address])) as access:
            try:
                return await greeted(term.partner, access.to_storage, term, ASK_SECONDS) > term.epoch
            except UnreachableError as error:
                _log.warning("cannot determine whether the other scheduler was promoted, so this one serves: %s", error)
    return False


async def _promoted(config: Any, term: Term, component: Component) -> bool:
    from scaler.extensions.standby.standby import Standby  # noqa: PLC0415 (unused without a journal)

    with contextlib.closing(Standby(config, term)) as standby:
        component.ready({"standby": standby.address})
        stop: asyncio.Future[Any] = asyncio.ensure_future(component.stop.wait())
        await asyncio.wait((stop, standby.promoted), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return standby.promoted.done() and standby.promoted.result()
