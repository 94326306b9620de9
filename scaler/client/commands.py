"""`scaler replay` and `scaler sessions`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from scaler.client.client import Client
from scaler.client.durable import session_tasks
from scaler.config.flags import bare_parser, verb_parser
from scaler.errors import UsageError
from scaler.extensions.failures.bundle import read_bundle, replay
from scaler.grammar import counted
from scaler.ids import show
from scaler.protocol import messages as m
from scaler.registry import find_only
from scaler.security import CREDENTIALS_VARIABLE
from scaler.serialization.exceptions import user_traceback
from scaler.texts import aligned, escaped_lines

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
SESSION_VERBS: Mapping[str, str] = {
    "list": "List the durable sessions of this key. Admins see all sessions.",
    "show": "List the tasks of a durable session.",
    "cancel": "Cancel the unfinished tasks of a durable session.",
    "remove": "Cancel the unfinished tasks of a durable session and remove it with its results.",
}


def replay_bundle(program: str, arguments: Sequence[str], _environment: Mapping[str, str]) -> int:
    """Run the task of a bundle; print its result or traceback, and return the exit code."""
    purpose = "Run the failed task of a bundle locally and print its result or traceback. This runs code from the file:"
    parser = bare_parser(program, f"{purpose} replay only bundles from people you trust.")
    parser.add_argument("bundle", metavar="BUNDLE", help="file written by client.bundle()")
    parser.add_argument("--pdb", action="store_true", help="open a debugger where the task raises its exception")
    given = parser.parse_args(arguments)
    ran, warning = read_bundle(given.bundle)
    if warning:
        sys.stderr.write(f"scaler replay: {warning}\n")
    try:
        value = replay(ran, pdb=given.pdb)
    except Exception as error:  # noqa: BLE001 (the user wants to see any exception of the task)
        sys.stderr.write(escaped_lines(f"{user_traceback(error).strip()}\n"))
        return 1
    sys.stdout.write(f"{escaped_lines(repr(value))}\n")
    return 0


def sessions(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """List, show, cancel, or remove durable sessions; return the exit code. Raises UsageError and `Client`'s errors."""
    verb, parser = verb_parser(program, SESSION_VERBS, arguments, "List, show, cancel, and remove durable sessions.")
    if verb != "list":
        parser.add_argument("name", metavar="NAME", help="of the session")
    text = "of the scheduler, or the name of a cluster [default: the only running cluster of this user]"
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help=text)
    text = f"the credential file of this client [default: {CREDENTIALS_VARIABLE}, or none on the scheduler's machine]"
    parser.add_argument("--credentials", metavar="FILE", help=text)
    given = parser.parse_intermixed_args(arguments[1:])
    address = given.address or environment.get("SCALER_ADDRESS") or find_only().address
    with Client(address, credentials=given.credentials) as client:
        rows = sorted(
            client._loop.ask(m.ListSessions(), m.SessionsListed).sessions, key=lambda row: (row.name, row.key)
        )
        if verb == "list":
            _list(rows)
            return 0
        row = _named(rows, given.name)
        if verb == "show":
            _show(client, row)
            return 0
        ended = client._loop.ask(m.EndSession(row.id, remove=verb == "remove"), m.SessionEnded)
        if ended.error:
            raise UsageError(ended.error)
        removed = "" if verb == "cancel" else f", and removed it with {counted(row.ended, 'result')}"
        tasks = counted(ended.cancelled, "unfinished task")
        _say(f"cancelled {tasks} of session {row.name!r}{removed}")
    return 0


def _list(rows: Sequence[m.SessionRow]) -> None:
    if not rows:
        _say("no durable sessions: Client(session=NAME) creates one")
        return
    table: list[Sequence[str]] = [("name", "key", "unfinished", "ended", "failed", "bytes", "used")]
    for row in rows:
        used = f"now, by {row.client}" if row.attached else f"{_ago(row.idle_seconds)} ago, by {row.client}"
        counts = (f"{count:,}" for count in (row.unfinished, row.ended, row.failed, row.size_bytes))
        table.append((row.name, row.key, *counts, used))
    _say(aligned(table))


def _show(client: Client, row: m.SessionRow) -> None:
    table = [("task", "function", "key", "tag", "state")]
    for each in session_tasks(client._loop, row.id):
        state = "unfinished" if each.outcome == m.UNFINISHED else m.Outcome(each.outcome).name.lower().replace("_", " ")
        table.append((show(each.task), each.function, each.key, each.tag, state))
    _say(aligned(table))


def _named(rows: Iterable[m.SessionRow], name: str) -> m.SessionRow:
    found = [row for row in rows if row.name == name]
    if not found:
        raise UsageError(f"this key has no session {name!r}; `scaler sessions list` lists all")
    if len(found) > 1:
        keys = ", ".join(row.key for row in found)
        raise UsageError(f"session {name!r} exists for the keys {keys}: use a credential of one of them")
    return found[0]


def _ago(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
