"""`scaler trace`: writes the timeline to a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import sys
from collections.abc import Sequence

from scaler.config.commands import Environment
from scaler.config.flags import flags_parser
from scaler.config.monitors import TopConfig
from scaler.errors import UsageError
from scaler.extensions.timeline.lanes import trace
from scaler.grammar import counted
from scaler.monitor.commands import STDOUT, ask, asked, save, split_subject, write
from scaler.monitor.connection import MonitorConnection

HINT = "; scaler trace FILE ADDRESS writes to FILE"
NO_TASK = "no task is running or has ended; --seconds 30 waits for tasks"


def trace_file(program: str, arguments: Sequence[str], environment: Environment) -> int:
    purpose = "Write a timeline of the cluster as a trace for Perfetto and Chrome. FILE can be - for stdout."
    parser = flags_parser(program, TopConfig, purpose, "FILE")
    text = "seconds to watch before writing; by default, writes the scheduler's history at once"
    parser.add_argument("--seconds", type=float, metavar="SECONDS", default=0.0, help=text)
    file, rest = split_subject(arguments)
    if not file:
        parser.parse_known_args([text for text in arguments if text in ("-h", "--help", "--version")])
        if arguments and "://" in arguments[0]:
            raise UsageError(f"{arguments[0]!r} is an address: {program} FILE {arguments[0]}")
        raise UsageError(f"give the FILE first: {program} FILE ADDRESS")
    config, own = asked(parser, rest, environment)
    seconds = own["seconds"]
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"--seconds is {seconds}, but must be at least 0")

    async def work(connection: MonitorConnection) -> None:
        if seconds:
            await _watch(seconds)
        document = trace(connection.model)
        text = json.dumps(document)
        if file == STDOUT:
            sys.stdout.write(f"{text}\n")
            return
        save(file, text, HINT)
        tasks = sum(event["ph"] == "X" for event in document["traceEvents"])
        line = f"wrote {counted(tasks, 'task')} to {file}: open it in https://ui.perfetto.dev or chrome://tracing"
        write(sys.stdout, line if tasks else f"{line}; {NO_TASK}")

    return ask(config, work)


async def _watch(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    write(sys.stderr, f"scaler trace: watching for {seconds:g} s; press Ctrl-C to write the data so far")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await interrupted.wait()
    loop.remove_signal_handler(signal.SIGINT)
