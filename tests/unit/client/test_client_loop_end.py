"""Threads that wait for the client's loop when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from scaler.client.futures import FutureTable
from scaler.client.tasks import ObjectUpload
from scaler.errors import ClientClosedError
from scaler.ids import IdFactory, new_peer_id


def test_thread_of_an_abandoned_coroutine_is_woken() -> None:
    loop = asyncio.new_event_loop()
    futures = FutureTable(
        IdFactory(new_peer_id()),
        wake=lambda: None,
        upload=cast("Callable[..., ObjectUpload]", None),
        blocked=contextlib.nullcontext,
        why_late=lambda *_: "",
        explain=lambda _: "",
        timeout_seconds=1.0,
    )
    began = threading.Event()

    async def never_end() -> None:
        began.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(futures.run, never_end(), loop)
        while not began.is_set():
            loop.run_until_complete(asyncio.sleep(0))
        unfinished = asyncio.all_tasks(loop)
        loop.close()
        futures.loop_ended()
        with pytest.raises(ClientClosedError):
            waiting.result(10)
        with pytest.raises(ClientClosedError):
            futures.run(never_end(), loop)
    for task in unfinished:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 (asyncio offers no other way)
