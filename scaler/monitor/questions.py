"""`scaler explain`, `scaler logs` and `scaler trace`: ask a scheduler's monitor address once, and print the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from scaler.config.commands import Question
from scaler.errors import UsageError
from scaler.logs import escaped
from scaler.monitor.connection import MonitorConnection, task_id_of
from scaler.monitor.model import trace

STDOUT = "-"
REMEMBERED_SECONDS = 1.0
"""A scheduler tells what it remembers right after its state; one that remembers nothing need not say so."""
VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


def run(question: Question) -> int:
    """Ask, print, and return the exit code.

    Raises UsageError for what is no task id or a file that cannot be written, UnreachableError when no answer comes in
    time, and RefusedError.
    """
    # Whatever goes wrong is said by the error; lines of a log would stand in the midst of the answer.
    logging.getLogger("scaler").addHandler(logging.NullHandler())
    if question.verb == "trace":
        _check_folder(question.subject)
    else:
        task_id_of(question.subject)
    try:
        asyncio.run(_main(question))
        sys.stdout.flush()
    except BrokenPipeError:  # `head` has read enough; and Python must not find that out once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


async def _main(question: Question) -> None:
    changed = asyncio.Event()
    config = question.config
    connection = MonitorConnection(config.monitor_address, changed.set, timeout_seconds=config.timeout_seconds)
    try:
        await connection.ready()
        match question.verb:
            case "explain":
                _write(sys.stdout, await connection.explain(question.subject))
            case "logs":
                await _show_log(connection, question.subject)
            case "trace":
                await _watch(connection, changed, question.seconds)
                _write_trace(connection, question.subject)
    finally:
        connection.close()


async def _show_log(connection: MonitorConnection, task: str) -> None:
    """Print what the task printed, to the stream that it was printed to."""
    log = await connection.log(task)
    for stream, text in ((sys.stdout, log.stdout), (sys.stderr, log.stderr)):
        if text:
            _write(stream, text.decode("utf-8", "backslashreplace"))
    if log.truncated_bytes:
        _write(sys.stderr, f"scaler logs: {log.truncated_bytes:,} bytes were left out")
    if not (log.stdout or log.stderr or log.truncated_bytes):
        _write(sys.stderr, f"scaler logs: no output of this task is kept: {await connection.explain(task)}")


async def _watch(connection: MonitorConnection, changed: asyncio.Event, seconds: float) -> None:
    """Wait for what the scheduler remembers, then for as long as was asked for, or until Ctrl-C."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, REMEMBERED_SECONDS)):
            while not connection.model.kept:
                changed.clear()
                await changed.wait()
    if seconds <= 0:
        return
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, enough.set)
    _write(sys.stderr, f"scaler trace: watching for {seconds:g} s; Ctrl-C writes what there is so far")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await enough.wait()
    loop.remove_signal_handler(signal.SIGINT)


def _write_trace(connection: MonitorConnection, file: str) -> None:
    document = trace(connection.model)
    tasks = sum(event["ph"] == "X" for event in document["traceEvents"])
    text = json.dumps(document)
    if file == STDOUT:
        sys.stdout.write(text + "\n")
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error)) from None
    told = f"{tasks:,} tasks are in {file}: open it in {VIEWERS}"
    _write(sys.stdout, told if tasks else f"{told}; no task has ended or runs, --seconds 30 waits for some")


def _check_folder(file: str) -> None:
    """See that the file can be made before anything is waited for. Raises UsageError."""
    path = Path(file)
    if file != STDOUT and path.is_dir():
        raise _unwritable(file, "it is a folder")
    if file != STDOUT and not path.parent.is_dir():
        raise _unwritable(file, f"there is no folder {str(path.parent)!r}")


def _unwritable(file: str, why: str) -> UsageError:
    return UsageError(f"cannot write {file!r}: {why}; scaler trace FILE ADDRESS writes the timeline to FILE")


def _write(stream: TextIO, text: str) -> None:
    """Write lines whose control characters are shown and not sent."""
    stream.writelines("\t".join(map(escaped, line.split("\t"))) + "\n" for line in text.splitlines())
