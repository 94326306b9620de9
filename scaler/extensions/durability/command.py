"""`scaler sessions`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from scaler.client.client import Client
from scaler.config.flags import verb_parser
from scaler.errors import UsageError
from scaler.extensions.durability.client import session_tasks
from scaler.grammar import counted, timed
from scaler.ids import show
from scaler.monitor.messages import UNFINISHED, EndSession, SessionEnded
from scaler.protocol import messages as m
from scaler.registry import find_only
from scaler.security import CREDENTIALS_VARIABLE
from scaler.texts import aligned

SESSION_VERBS: Mapping[str, str] = {
    "list": "List the durable sessions of this key. Admins see all sessions.",
    "show": "List the tasks of a durable session.",
    "cancel": "Cancel the unfinished tasks of a durable session.",
    "remove": "Cancel the unfinished tasks of a durable session and remove it with its results.",
}


def sessions(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """List, show, cancel, or remove durable sessions; return the exit code. Raises UsageError and `Client`'s errors."""
    verb, parser = verb_parser(program, SESSION_VERBS, arguments, "List, show, cancel, and remove durable sessions.")
    if verb != "list":
        parser.add_argument("name", metavar="NAME", help="of the session")
    text = "scheduler address, or name of a cluster [default: this user's only running cluster]"
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help=text)
    text = f"this client's credential file [default: {CREDENTIALS_VARIABLE}, or none on the scheduler's machine]"
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
        ended = client._loop.ask(EndSession(row.id, remove=verb == "remove"), SessionEnded)
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
        used = f"now, by {row.client}" if row.attached else f"{timed(row.idle_seconds)} ago, by {row.client}"
        counts = (f"{count:,}" for count in (row.unfinished, row.ended, row.failed, row.size_bytes))
        table.append((row.name, row.key, *counts, used))
    _say(aligned(table))


def _show(client: Client, row: m.SessionRow) -> None:
    table = [("task", "function", "key", "tag", "state")]
    for each in session_tasks(client._loop, row.id):
        state = "unfinished" if each.outcome == UNFINISHED else m.Outcome(each.outcome).name.lower().replace("_", " ")
        table.append((show(each.task), each.function, each.key, each.tag, state))
    _say(aligned(table))


def _named(rows: Iterable[m.SessionRow], name: str) -> m.SessionRow:
    found = [row for row in rows if row.name == name]
    if not found:
        raise UsageError(f"this key has no session {name!r}; `scaler sessions list` lists all sessions")
    if len(found) > 1:
        keys = ", ".join(row.key for row in found)
        raise UsageError(f"session {name!r} exists for the keys {keys}: use a credential of one of them")
    return found[0]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
