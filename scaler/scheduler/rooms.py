"""Creates the extensions' parts in a scheduler's process. An exception in a hook disables its extension."""

from __future__ import annotations

import math
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from scaler.config.servers import SchedulerConfig
from scaler.errors import UsageError
from scaler.journal.files import FileWriter
from scaler.paths import local_path
from scaler.plugins import FoundTable, extensions, load
from scaler.protocol.messages import ReadTable, Reply, Role, TableRead, Unanswered
from scaler.scheduler.additions import Additions
from scaler.scheduler.core.changes import Incident, Observed, Told
from scaler.scheduler.core.cluster import ClusterState, Scaling
from scaler.scheduler.core.commands import Command, Input, Perform
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.tables import rows_document

_MAX_TEXT = 500


def answer_table(
    tables: Mapping[str, tuple[FoundTable, Any]], question: ReadTable, client: ClientRecord, state: ClusterState
) -> Reply:
    """Answer with rows from an extension. tables: by name, each table with its guarded part."""
    if question.table not in tables:
        return Unanswered(f"this scheduler has no table {question.table[:100]!r}")
    table, part = tables[question.table]
    identity = client.identity
    if table.for_monitors and not (identity.is_admin or Role.MONITOR in identity.roles):
        return Unanswered(f"the table {table.name} covers all clients and requires a key with role monitor or admin")
    found: Reply = part.rows(question.table, question.search, question.most, client, state)
    return found


class Surroundings(NamedTuple):
    """A performer's access to the scheduler's process. tell: passes a document (plain values, as in JSON) to the
    scheduler part of its extension, as a `Told`; call it only on the loop. state_directory: None if not set.
    """

    loop: AbstractEventLoop
    files: FileWriter
    tell: Callable[[Any], None]
    state_directory: Path | None


def part(reference: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", load(reference))


def _document(rows: Callable[..., Any], *args: Any) -> TableRead:
    return TableRead(rows_document(rows(*args)))


def switched_off(name: str, hook: str, error: Exception) -> Incident:
    """Return the incident about an extension that was disabled after an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    text = f"{hook} raised {type(error).__name__}: {error}"[:_MAX_TEXT]
    return Incident("extension", f"the extension {name}", f"{text}{where}", {})


def guard(name: str, part: Any, failed: list[Incident]) -> Any:
    """Wrap the hooks of a part, so that the first exception disables the part and adds an incident to `failed`. Returns
    the part. `on_changes` runs for every batch and is not wrapped: `Rooms` calls `switch_off` with its exception."""
    own: list[Incident] = []

    def switch_off(hook: str, error: Exception) -> None:
        part.next_at, part.on_changes = math.inf, lambda *_args: ()
        own.append(switched_off(name, hook, error))
        failed.append(own[-1])

    def guarded(hook: str, call: Callable[..., Any], otherwise: Callable[[], object]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            if not own:
                try:
                    return call(*args)
                except Exception as error:  # noqa: BLE001 (the cluster continues without the extension)
                    switch_off(hook, error)
            return otherwise()

        return called

    def refused() -> Unanswered:
        return Unanswered(f"{own[0].subject} is switched off: {own[0].text}")

    part.switch_off = switch_off
    for hook in ("on_message", "on_time"):
        setattr(part, hook, guarded(hook, partial(_commands, getattr(part, hook)), list))
    part.rows = guarded("rows", part.rows, refused)
    part.on_question = guarded("on_question", part.on_question, refused)
    part.add_to_status = guarded("add_to_status", part.add_to_status, Additions)
    return part


def _commands(call: Callable[..., Iterable[Command]], *args: Any) -> list[Command]:
    return [*call(*args)]


def make_rooms(config: SchedulerConfig) -> Rooms:
    """Return the extensions for these settings. Raises UsageError if an extension cannot start."""
    parts: dict[str, Any] = {}
    tables: dict[str, tuple[FoundTable, Any]] = {}
    failed: list[Incident] = []
    for each in extensions(config.extensions):
        if each.scheduler:
            try:
                made = part(each.scheduler)(config)
                made.rows = partial(_document, made.rows)
                parts[each.name] = guard(each.name, made, failed)
            except Exception as error:
                raise UsageError(f"the extension {each.name!r} cannot start: {error!r}") from error
            tables |= {table.name: (table, parts[each.name]) for table in each.found}
    return Rooms([*parts.values()], {ReadTable: partial(answer_table, tables)}, failed)


def _first(kind: str, changes: tuple[str, ...], *args: Any) -> Any:
    """Return the first extension's part of this kind, or None. changes: see `extensions`."""
    return next((part(getattr(each, kind))(*args) for each in extensions(changes) if getattr(each, kind)), None)


def make_keeper(frame: Any) -> Any:
    """Return the object that delays a scheduler's commands until their changes are journaled, or None. The last
    extension that has one supplies it."""
    keepers = [each.keeper for each in extensions(frame.config.extensions) if each.keeper]
    return part(keepers[-1])(frame) if keepers and frame.config.state_directory else None


def make_policy(config: SchedulerConfig, step: Callable[[Sequence[Input]], None]) -> Any:
    """Return the object that queries the scaling policy, or None."""
    return _first("policy", config.extensions, config, step)


def make_scaling(allocation: Any = None, changes: tuple[str, ...] = ()) -> Scaling:
    """Return the scaling of a cluster. allocation: the policy's `Allocation`, or None."""
    return _first("scaling", changes, allocation) or Scaling()


def table_names(config: SchedulerConfig) -> str:
    """Return the tables that ReadTable can read, as a Welcome lists them."""
    return " ".join(table.name for each in extensions(config.extensions) for table in each.found)


class Performers:
    """Performers of all extensions. The first exception disables a performer."""

    def __init__(self, observe: Callable[[Sequence[Observed]], None], publish: Callable[[Incident], None]) -> None:
        """observe: called with the performers' documents for their extensions. publish: called with incidents."""
        self._observe = observe
        self._publish = publish
        self.by_extension: dict[str, Any] = {}
        self._is_closed = False

    def start(self, config: SchedulerConfig, loop: AbstractEventLoop, files: FileWriter) -> None:
        """Create the performers, which may immediately send documents to their extensions."""
        directory = local_path(config.state_directory) if config.state_directory else None
        for each in extensions(config.extensions):
            if each.performer:
                around = Surroundings(loop, files, partial(self._told, each.name), directory)
                performer = part(each.performer)(config, around)
                if performer is not None:
                    self.by_extension[each.name] = performer

    def perform(self, extension: str, work: object) -> None:
        if extension in self.by_extension:
            try:
                self.by_extension[extension].perform(work)
            except Exception as error:  # noqa: BLE001 (the cluster continues without the extension)
                self._failed(extension, "perform", error)

    def answer(self, asked: Perform, send: Callable[[Reply], None]) -> None:
        """Answer a question, immediately or later."""
        try:
            if asked.extension in self.by_extension:
                self.by_extension[asked.extension].answer(asked.work, send)
                return
        except Exception as error:  # noqa: BLE001 (as above)
            self._failed(asked.extension, "answer", error)
        send(Unanswered(f"the extension {asked.extension} has failed: see the scheduler's log"))

    def close(self) -> None:
        self._is_closed = True
        for performer in self.by_extension.values():
            performer.close()

    def _told(self, extension: str, document: Any) -> None:
        if not self._is_closed:
            self._observe([Told(extension, document)])

    def _failed(self, extension: str, hook: str, error: Exception) -> None:
        del self.by_extension[extension]
        self._publish(switched_off(extension, hook, error))
