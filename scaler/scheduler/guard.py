"""Switches off extensions whose hooks raise, and answers questions for extension tables. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scaler.protocol.messages import ReadTable, Reply, TableRead, Unanswered
from scaler.scheduler.core.changes import Incident
from scaler.scheduler.core.cluster import ClusterState
from scaler.scheduler.core.commands import Command, Publish
from scaler.scheduler.core.rooms import Additions
from scaler.scheduler.core.state import ClientRecord
from scaler.scheduler.tables import rows_document

_MAX_TEXT = 500


def switched_off(name: str, hook: str, error: Exception) -> Incident:
    """Return the incident for an extension that was switched off because of an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    text = f"{hook} raised {type(error).__name__}: {error}"[:_MAX_TEXT]
    return Incident("extension", f"the extension {name}", f"{text}{where}", {})


def guard(name: str, part: Any) -> Any:
    """Wrap all hooks of a part so that the first exception switches it off. Returns the part."""
    incidents: list[Incident] = []
    unpublished: list[Incident] = []

    def failed(hook: str, error: Exception) -> None:
        part.next_at = -math.inf  # the next step publishes the incident of a question
        for each in incidents, unpublished:
            each.append(switched_off(name, hook, error))

    def of_commands(hook: str, call: Callable[..., Iterable[Command]]) -> Callable[..., Iterable[Command]]:
        def guarded(*args: Any) -> Iterable[Command]:
            if not incidents:
                try:
                    return [*call(*args)]
                except Exception as error:  # noqa: BLE001 (the cluster continues without the extension)
                    failed(hook, error)
            part.next_at = math.inf
            published = [Publish([*unpublished])] if unpublished else []
            unpublished.clear()
            return published

        return guarded

    def of_values(hook: str, call: Callable[..., Any], otherwise: Callable[[], object]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if not incidents:
                try:
                    return call(*args)
                except Exception as error:  # noqa: BLE001 (as above)
                    failed(hook, error)
            return otherwise()

        return guarded

    def refused() -> Unanswered:
        return Unanswered(f"{incidents[0].subject} is switched off: {incidents[0].text}")

    for hook in ("on_changes", "on_message", "on_time"):
        setattr(part, hook, of_commands(hook, getattr(part, hook)))
    rows = part.rows
    part.rows = of_values("rows", lambda *args: TableRead(rows_document(rows(*args))), refused)
    part.on_question = of_values("on_question", part.on_question, refused)
    part.add_to_status = of_values("add_to_status", part.add_to_status, Additions)
    return part


def answer_table(parts: Mapping[str, Any], question: ReadTable, client: ClientRecord, state: ClusterState) -> Reply:
    """Answer with rows of an extension. parts: guarded parts by table name."""
    part = parts.get(question.table)
    if part is None:
        return Unanswered(f"this scheduler has no table {question.table[:100]!r}")
    found: Reply = part.rows(question.table, question.search, question.most, client, state)
    return found
