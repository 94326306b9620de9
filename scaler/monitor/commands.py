"""`scaler_top`, and the commands of `scaler` that show what a scheduler reports: `explain`, `report` and others."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from scaler.config.commands import (
    AuditRequest,
    CostsRequest,
    HistoryRequest,
    ObjectsRequest,
    ProfileRequest,
    Question,
    TopForm,
    TopRequest,
)
from scaler.config.monitors import TopConfig
from scaler.errors import RefusedError, UsageError
from scaler.grammar import counted
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.history_lines import Shown, folded, shown, shown_of
from scaler.monitor.history_lines import line as history_line
from scaler.monitor.profiles import show_profile
from scaler.monitor.rows import view
from scaler.monitor.trace import trace
from scaler.net.access import Access
from scaler.paths import local_path
from scaler.protocol.data_rows import ObjectRow
from scaler.protocol.messages import Role
from scaler.protocol.monitor_rows import Status
from scaler.scheduler.history_file import FOLDER, read
from scaler.texts import escaped

STDOUT = "-"
TASK_ID = re.compile("[0-9a-fA-F]{32}")
PAST_SECONDS = 1.0
"""A scheduler sends the past right after its state; without a past there are no tasks to wait for."""
ONLY_MONITORS = "the audit log tells of all clients, so it takes a key of the role monitor or admin"
NO_TASK = "no task has ended or runs, --seconds 30 waits for some"
VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


_Request = TopRequest | Question | AuditRequest | HistoryRequest | ObjectsRequest | ProfileRequest | CostsRequest


def run(request: _Request) -> int:
    """Show or print, and return the exit code.

    Raises UsageError for a text that fits no task or several, a file that cannot be written, and a screen without a
    terminal; UnreachableError without an answer in time, and RefusedError.
    """
    # Errors are shown by the screen or the exit; log lines would stand between lines of output.
    if sys.platform == "win32":
        # Its default loop cannot wait for the sockets of ZeroMQ.
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    logging.getLogger("scaler").addHandler(logging.NullHandler())
    match request:
        case TopRequest(form="screen") if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("there is no terminal to show a screen on; --once prints plain text, --json a document")
        case Question(verb="trace" | "report" as verb, subject=file):
            _check_folder(file, verb)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if isinstance(request, HistoryRequest) and isinstance(request.source, Path):
            _print_files(request.source / FOLDER, request)
        else:
            asyncio.run(_main(request))
        sys.stdout.flush()
    except BrokenPipeError:  # `head` has read enough; Python must not fail on it again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


async def _main(request: _Request) -> None:
    changed = asyncio.Event()
    config = request.source if isinstance(request, HistoryRequest) else request.config
    assert isinstance(config, TopConfig)
    connection = MonitorConnection(
        config.monitor_address,
        changed.set,
        access=Access.of(config.credentials, config.insecure_no_auth, Role.MONITOR, "monitor", config.compression),
        timeout_seconds=config.timeout_seconds,
    )
    try:
        await connection.ready()
        match request:
            case TopRequest(form="screen"):
                await _screen(connection)
            case TopRequest(form=form):
                await connection.storage_figures()
                _print_once(connection, form)
            case AuditRequest() if connection.client_key:
                raise RefusedError(f"{ONLY_MONITORS}, and {connection.client_key} is for the role client")
            case AuditRequest():
                for row in connection.model.logs["audit"]:
                    _write(sys.stdout, json.dumps(row.document()) if request.as_json else row.line)
            case HistoryRequest(since=since, until=until, as_json=as_json):
                _print_history(shown_of(await connection.history(since, until)), as_json=as_json)
            case ProfileRequest(_, subject, output):
                await show_profile(connection, subject, output, _write)
            case ObjectsRequest(_, as_json, limit):
                _print_objects(await connection.objects(limit), as_json=as_json)
            case Question(verb="explain", subject=task):
                await _explain(connection, task)
            case Question(verb="logs", subject=""):
                for each in reversed(await connection.rows("logs")):
                    _write(sys.stdout, log_line(each))
            case CostsRequest(_, as_json):
                _print_costs(connection.model.status, as_json=as_json)
            case Question(verb="logs", subject=task):
                await _show_log(connection, await _task_of(connection, task))
            case Question(verb="report" as verb, subject=file, seconds=seconds):
                await _watch(connection, changed, seconds, verb)
                await connection.storage_figures()
                await _write_report(connection, file)
            case Question(verb=verb, subject=file, seconds=seconds):
                await _watch(connection, changed, seconds, verb)
                _write_trace(connection, file)
    finally:
        connection.close()


async def _explain(connection: MonitorConnection, task: str) -> None:
    """Print why a task waits or how it ended; without one, why all tasks wait."""
    if task:
        _write(sys.stdout, await connection.explain(await _task_of(connection, task)))
        return
    for line in why_waiting(connection.model.status):
        _write(sys.stdout, line)


async def _screen(connection: MonitorConnection) -> None:
    from scaler.monitor.top.app import TopApp  # noqa: PLC0415 (scripts need not wait for a toolkit of screens)

    app = TopApp(connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, app.exit)  # which restores the terminal
    await app.run_async()


def _print_once(connection: MonitorConnection, form: TopForm) -> None:
    from scaler.monitor.top import panels  # noqa: PLC0415 (the other commands print no tables)

    if form == "json":
        sys.stdout.write(panels.as_json(connection.model, connection.address))
    else:
        width = os.get_terminal_size(1).columns if os.isatty(1) else None
        sys.stdout.write(panels.as_text(connection.model, width))


async def _task_of(connection: MonitorConnection, text: str) -> str:
    """Return the id of the only task that a search finds; list several. Raises UsageError."""
    if TASK_ID.fullmatch(text):
        return text
    found = await connection.find(text)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise UsageError(f"no task is known whose id begins with {text!r}, or that has it in a name")
    for row in found:
        _write(sys.stdout, f"{row.id} {row.state:9} {row.function}")
    raise UsageError(f"{counted(len(found), 'task')} fit {text!r}: give the id of one")


def why_waiting(status: Status) -> list[str]:
    """Return a line for each kind of waiting tasks, the oldest first."""
    rows = sorted(status.waiting, key=lambda row: -row.age_seconds)
    lines = [
        f"{counted(row.tasks, 'task')} of {row.function}: {row.reason} (the oldest for {row.age_seconds:,.1f} s)"
        for row in rows
    ]
    if (more := status.totals.waiting - len(rows)) > 0:
        lines.append(f"and {counted(more, 'other kind')} of waiting tasks")
    return lines or ["no task waits"]


async def _show_log(connection: MonitorConnection, task: str) -> None:
    """Print the task's stdout to stdout, and its stderr to stderr."""
    log = await connection.log(task)
    for stream, text in ((sys.stdout, log.stdout), (sys.stderr, log.stderr)):
        if text:
            _write(stream, text.decode("utf-8", "backslashreplace"))
    if log.truncated_bytes:
        _write(sys.stderr, f"scaler logs: {log.truncated_bytes:,} B left out")
    if not (log.stdout or log.stderr or log.truncated_bytes):
        _write(sys.stderr, f"scaler logs: no output of this task is kept: {await connection.explain(task)}")


def log_line(row: Any) -> str:
    """Return a record of a worker's own log as a line."""
    time = datetime.fromtimestamp(row.at).astimezone().isoformat(timespec="milliseconds")
    return f"{time} {row.level} {row.worker}: {row.text}"


def _print_files(directory: Path, request: HistoryRequest) -> None:
    if not directory.is_dir():
        raise UsageError(f"there is no folder {str(directory)!r}: give the state_directory of a scheduler")
    try:
        _print_history(shown(read(directory, request.since, request.until)), as_json=request.as_json)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None


def _print_history(rows: Iterable[Shown], *, as_json: bool) -> None:
    for row in rows if as_json else folded(rows):
        sys.stdout.write(history_line(row, as_json=as_json) + "\n")


def _print_objects(rows: list[ObjectRow], *, as_json: bool) -> None:
    from scaler.monitor.top.data import table_of  # noqa: PLC0415 (the other commands print no tables)

    width = os.get_terminal_size(1).columns if os.isatty(1) else None
    lines = [json.dumps(view(row)) for row in rows] if as_json else table_of(ObjectRow, rows, width)
    for line in lines:
        _write(sys.stdout, line)


def _print_costs(status: Status, *, as_json: bool) -> None:
    if as_json:
        document = {"spending": view(status.spending), "costs": [view(row) for row in status.costs]}
        _write(sys.stdout, json.dumps(document))
        return
    from scaler.monitor.top.costs import cost_lines  # noqa: PLC0415 (the other commands print no tables)

    width = os.get_terminal_size(1).columns if os.isatty(1) else None
    for line in cost_lines(status, width):
        _write(sys.stdout, line)


async def _watch(connection: MonitorConnection, changed: asyncio.Event, seconds: float, verb: str) -> None:
    """Wait for the past, then for this time, or until Ctrl-C."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, PAST_SECONDS)):
            while not connection.model.task_count:
                changed.clear()
                await changed.wait()
    if seconds <= 0:
        return
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    _write(sys.stderr, f"scaler {verb}: watching for {seconds:g} s; Ctrl-C writes what there is so far")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await interrupted.wait()
    loop.remove_signal_handler(signal.SIGINT)


def _write_trace(connection: MonitorConnection, file: str) -> None:
    document = trace(connection.model)
    tasks = sum(event["ph"] == "X" for event in document["traceEvents"])
    if _write_file(file, "trace", json.dumps(document)):
        written = f"wrote {counted(tasks, 'task')} to {file}: open it in {VIEWERS}"
        _write(sys.stdout, written if tasks else f"{written}; {NO_TASK}")


async def _write_report(connection: MonitorConnection, file: str) -> None:
    from scaler.monitor.web.report import report  # noqa: PLC0415 (the other commands serve no page)

    tasks = connection.model.task_count
    if _write_file(file, "report", await report(connection)):
        written = f"wrote {counted(tasks, 'task')} to {file}: open it in a browser"
        _write(sys.stdout, written if tasks else f"{written}; {NO_TASK}")


def _write_file(file: str, verb: str, text: str) -> bool:
    """Write the text, and return whether stdout is free for a line about it."""
    if file == STDOUT:
        sys.stdout.write(text + "\n")
        return False
    try:
        local_path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(file, verb, error.strerror or str(error)) from None
    return True


def _check_folder(file: str, verb: str) -> None:
    """Raise UsageError before any waiting if the file cannot be made."""
    path = local_path(file)
    if file != STDOUT and path.is_dir():
        raise _unwritable(file, verb, "it is a folder")
    if file != STDOUT and not path.parent.is_dir():
        raise _unwritable(file, verb, f"there is no folder {str(path.parent)!r}")


def _unwritable(file: str, verb: str, why: str) -> UsageError:
    return UsageError(f"cannot write {file!r}: {why}; scaler {verb} FILE ADDRESS writes to FILE")


def _write(stream: TextIO, text: str) -> None:
    """Write lines with escapes instead of control characters."""
    stream.writelines("\t".join(map(escaped, line.split("\t"))) + "\n" for line in text.splitlines())
