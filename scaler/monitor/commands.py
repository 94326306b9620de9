"""`scaler_top`, and the `scaler` commands that show reports of a scheduler."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from scaler.config.commands import Environment, asking_sources, whom_to_ask
from scaler.config.flags import bare_parser, flags_parser
from scaler.config.monitors import TopConfig
from scaler.errors import UsageError
from scaler.extras import require
from scaler.grammar import counted
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.rows import view
from scaler.monitor.tables import TABLES, Table, table_named, values_of
from scaler.net.access import Access
from scaler.paths import local_path
from scaler.protocol.messages import Role
from scaler.registry import running
from scaler.stack_profile import read_document
from scaler.texts import aligned, escaped

STDOUT = "-"
TASK_ID = re.compile("[0-9a-fA-F]{32}")
LIMITS = {"audit": "2000", "logs": "1000", "objects": "20"}
"""Default row limits of tables that are printed."""


def ask(config: TopConfig, work: Callable[[MonitorConnection], Awaitable[None]]) -> int:
    """Connect, run work, and return the exit code. Raises UnreachableError on timeout, and RefusedError."""
    # Errors are shown on the screen or at exit. Log lines would interrupt the output.
    if sys.platform == "win32":
        # The default loop on Windows cannot wait for ZeroMQ's sockets.
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    logging.getLogger("scaler").addHandler(logging.NullHandler())

    async def main() -> None:
        access = Access.of(config.credentials, config.insecure_no_auth, Role.MONITOR, "monitor", config.compression)
        connection = MonitorConnection(config.monitor_address, access=access, timeout_seconds=config.timeout_seconds)
        try:
            await connection.ready()
            await work(connection)
        finally:
            connection.close()

    return printed(lambda: asyncio.run(main()))


def asked(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Environment
) -> tuple[TopConfig, dict[str, Any]]:
    sources, own = asking_sources(parser, arguments, environment)
    return whom_to_ask(sources), own


def printed(work: Callable[[], object]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:  # `head` has closed the pipe, so Python must not fail again on stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


# -- tables


def show(program: str, arguments: Sequence[str], environment: Environment) -> int:
    """Run `scaler show NAME`. Without a name, list the tables."""
    has_flag_first = not arguments or arguments[0].startswith("-")
    name = next((text for text in arguments if text in TABLES), "") if has_flag_first else arguments[0]
    if not name:
        parser = bare_parser(program, f"Print a table. {program} NAME -h lists the flags of a table.")
        parser.usage = f"{program} NAME [--json] [flags] [-c FILE] [settings] [ADDRESS]"
        listed = aligned([(f"  {table.name}", table.title) for table in TABLES.values()])
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = f"tables:\n{listed}"
        parser.parse_args(arguments)
        return printed(lambda: sys.stdout.write(f"{listed}\n"))
    rest = [*arguments]
    rest.remove(name)
    return _show(name, f"{program} {name}", rest, environment)


def show_alias(program: str, arguments: Sequence[str], environment: Environment) -> int:
    return _show(program.rsplit(maxsplit=1)[-1], program, arguments, environment)


def _show(name: str, program: str, arguments: Sequence[str], environment: Environment) -> int:
    table = table_named(name)
    defaults = {"limit": LIMITS[name]} if name in LIMITS else {}
    parser = flags_parser(program, TopConfig, f"{table.title}.")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    for each in table.parameters:
        default = defaults.get(each.name) or each.schema.get("default", "")
        shown = f" [default: {default}]" if default else ""
        metavar = "TEXT" if each.schema["type"] == "string" else "COUNT"
        parser.add_argument(f"--{each.name}", metavar=metavar, help=f"{each.text}{shown}")
    config, own = asked(parser, arguments, environment)
    as_json = own.pop("json")
    given = {name: [text] for name, text in {**defaults, **{k: v for k, v in own.items() if v is not None}}.items()}
    return ask(config, partial(_print_table, table, values_of(table.parameters, given), as_json))


async def _print_table(table: Table, values: Mapping[str, Any], as_json: bool, connection: MonitorConnection) -> None:
    rows = await table.rows(connection, values)
    is_record = hasattr(table.kind, "line")
    rows = rows[::-1] if is_record else rows
    if as_json:
        lines: Iterable[str] = (json.dumps(row.document() if hasattr(row, "document") else view(row)) for row in rows)
    elif is_record:
        lines = (row.line for row in rows)
    else:
        from scaler.monitor.top.table import table_of  # noqa: PLC0415 (the other commands print no tables)

        lines = table_of(table.kind, rows, _width())
    for line in lines:
        write(sys.stdout, line)


# -- tasks


def _of_task(
    table: str,
    purpose: str,
    show_task: Callable[[MonitorConnection, str], Awaitable[None]],
    program: str,
    arguments: Sequence[str],
    environment: Environment,
) -> int:
    """Run a command about a task. Without a task, print a table."""
    task, rest = split_subject(arguments)
    if (not rest or rest[0].startswith("-")) and any(cluster.name == task for cluster in running()):
        task, rest = "", arguments  # the only argument names a running cluster
    if not task and not {"-h", "--help"}.intersection(arguments):
        return _show(table, program, arguments, environment)
    config, _ = asked(flags_parser(program, TopConfig, purpose, "TASK_ID"), rest, environment)

    async def work(connection: MonitorConnection) -> None:
        await show_task(connection, await _task_of(connection, task))

    return ask(config, work)


def split_subject(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    first = arguments[0] if arguments else ""
    if not first or (first.startswith("-") and first != STDOUT) or "://" in first:
        return "", arguments
    return first, arguments[1:]


async def _task_of(connection: MonitorConnection, text: str) -> str:
    """Return the id of the only match of a search. Raises UsageError with a list if several tasks match."""
    if TASK_ID.fullmatch(text):
        return text
    found = await connection.find(text)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise UsageError(f"no known task has an id that starts with {text!r} or a name that contains it")
    for row in found:
        write(sys.stdout, f"{row.id} {row.state:9} {row.function}")
    raise UsageError(f"{counted(len(found), 'task')} match {text!r}: use a full id")


async def _show_log(connection: MonitorConnection, task: str) -> None:
    log = await connection.log(task)
    for stream, text in ((sys.stdout, log.stdout), (sys.stderr, log.stderr)):
        if text:
            write(stream, text.decode("utf-8", "backslashreplace"))
    if log.truncated_bytes:
        write(sys.stderr, f"scaler logs: {log.truncated_bytes:,} B omitted")
    if not (log.stdout or log.stderr or log.truncated_bytes):
        write(sys.stderr, f"scaler logs: no stored output of this task: {await connection.explain(task)}")


async def _show_explanation(connection: MonitorConnection, task: str) -> None:
    write(sys.stdout, await connection.explain(task))


_EXPLAIN = "Explain why a task waits, or how it ended. Without a task, explain all waiting tasks. Accepts a name."
_LOGS = "Print a task's output. Without a task, print the workers' latest warnings. Accepts the beginning of an id."
explain = partial(_of_task, "waiting", _EXPLAIN, _show_explanation)
logs = partial(_of_task, "logs", _LOGS, _show_log)


# -- profiles, and the screen


def profile(program: str, arguments: Sequence[str], environment: Environment) -> int:
    purpose = "Print the hottest frames of a task, a function, or all functions."
    parser = flags_parser(program, TopConfig, purpose, "[--of TASK_ID|FUNCTION] [--output FILE]")
    parser.add_argument("--of", metavar="TASK_ID|FUNCTION", default="", help="what to show [default: list functions]")
    text = "write the profile as collapsed stacks, for speedscope or flamegraph.pl; - writes to stdout"
    parser.add_argument("--output", metavar="FILE", default="", help=text)
    config, own = asked(parser, arguments, environment)
    if own["output"] and not own["of"]:
        raise UsageError(f"--output writes one profile: add --of with a task's id or a function from {program}")
    return ask(config, partial(_show_profile, own["of"], own["output"]))


async def _show_profile(subject: str, output: str, connection: MonitorConnection) -> None:
    if not subject:
        rows = (await connection.profile())["functions"]
        lines = [f"{microseconds / 1e6:10.2f} s  {name}  {frame}" for name, _, microseconds, frame in rows]
        nothing = "no samples yet: tasks were too short, or profile_interval_seconds is 0"
        write(sys.stdout, "\n".join([f"{'time':>12}  function  hottest frame", *lines]) if rows else nothing)
        return
    is_task = TASK_ID.fullmatch(subject) is not None
    document = await (connection.profile(subject) if is_task else connection.profile("", subject))
    if not document["of"]:
        raise UsageError(f"no samples of {subject!r}; scaler profile ADDRESS lists the functions that have samples")
    stacks, name = read_document(document), str(document["name"])
    text = stacks.table(name)
    if output:
        text = stacks.collapsed()
    if output not in ("", STDOUT):
        save(output, text)
        text = f"wrote {stacks.samples:,} samples of {name} to {output}"
    write(sys.stdout, text)


def top(program: str, arguments: Sequence[str], environment: Environment) -> int:
    """Run `scaler_top`. Raises UsageError if the screen is requested without a terminal."""
    parser = flags_parser(program, TopConfig, "Show the state of a cluster in a terminal.", "[--once | --json]")
    for flag, text in (("--once", "as plain text"), ("--json", "as one JSON document")):
        parser.add_argument(flag, action="store_true", help=f"print the state once {text}, and exit")
    sources, own = asking_sources(parser, arguments, environment)
    if own["once"] or own["json"]:
        return ask(whom_to_ask(sources), partial(_print_once, own["json"]))
    require("textual", "the screen (without --once or --json)")
    config = whom_to_ask(sources)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("not a terminal; --once prints plain text, --json prints JSON")
    return ask(config, _screen)


async def _screen(connection: MonitorConnection) -> None:
    from scaler.monitor.top.app import TopApp  # noqa: PLC0415 (scripts need not wait for a toolkit of screens)

    app = TopApp(connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, app.exit)  # this restores the terminal
    await app.run_async()


async def _print_once(as_json: bool, connection: MonitorConnection) -> None:
    from scaler.monitor.top import panels  # noqa: PLC0415 (the other commands print no tables)

    model = connection.model
    sys.stdout.write(panels.as_json(model, connection.address) if as_json else panels.as_text(model, _width()))


# -- output


def save(file: str, text: str, hint: str = "") -> None:
    try:
        local_path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file!r}: {error.strerror or error}{hint}") from None


def _width() -> int | None:
    return os.get_terminal_size(1).columns if os.isatty(1) else None


def write(stream: TextIO, text: str) -> None:
    """Write lines with control characters escaped."""
    stream.writelines("\t".join(map(escaped, line.split("\t"))) + "\n" for line in text.splitlines())
