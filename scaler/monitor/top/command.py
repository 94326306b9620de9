"""`scaler_top`: connects to a scheduler's monitor address, then shows it on a screen or prints it once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from scaler.config.commands import TopRequest
from scaler.errors import UsageError
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.top import panels


def run(request: TopRequest) -> int:
    """Show or print, and return the exit code.

    Raises UnreachableError when nothing answers in time, RefusedError, and UsageError for a screen without a terminal.
    """
    if request.form == "screen" and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("there is no terminal to show a screen on; --once prints plain text, --json a document")
    # Whatever goes wrong is said on the screen or by the exit; lines of a log would stand in the middle of it.
    logging.getLogger("scaler").addHandler(logging.NullHandler())
    return asyncio.run(_main(request))


async def _main(request: TopRequest) -> int:
    config = request.config
    connection = MonitorConnection(config.monitor_address, timeout_seconds=config.timeout_seconds)
    try:
        await connection.ready()
        match request.form:
            case "screen":
                await _screen(connection)
            case "once":
                width = os.get_terminal_size(1).columns if os.isatty(1) else None
                _print(panels.as_text(connection.model, width))
            case "json":
                _print(panels.as_json(connection.model, config.monitor_address))
    finally:
        connection.close()
    return 0


async def _screen(connection: MonitorConnection) -> None:
    from scaler.monitor.top.app import TopApp  # noqa: PLC0415 (scripts need not wait for a toolkit of screens)

    app = TopApp(connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, app.exit)  # the terminal is put back in order
    await app.run_async()


def _print(text: str) -> None:
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        return  # `head` has read enough
