"""The scheduler's log of incidents and scaling decisions."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop

from scaler.grammar import counted
from scaler.logs import RateLimitedLog, about
from scaler.scheduler.core.changes import Change, Incident, ScalingDecided
from scaler.texts import escaped

_INCIDENTS = {
    "joined": (logging.INFO, "%s joined%s"),
    "left": (logging.INFO, "%s left: %s"),
    "lost": (logging.WARNING, "%s was lost: %s"),
    "degraded": (logging.WARNING, "%s is degraded: %s"),
    "retried": (logging.INFO, "%s runs again: %s"),
    "quarantined": (logging.WARNING, "%s gets no more tasks: %s"),
    "packages": (logging.WARNING, "%s has different package versions than a client: %s"),
    "policy": (logging.ERROR, "%.0s%s"),
    "spend_limit": (logging.WARNING, "%s: %s"),
    "extension": (logging.ERROR, "%s is switched off: %s"),
}


class IncidentLog:
    def __init__(self, log: logging.Logger, loop: AbstractEventLoop) -> None:
        self._log = log
        self._dropped = RateLimitedLog(log, logging.WARNING, loop)

    def add(self, change: Change) -> None:
        match change:
            case Incident("protocol_error", subject, text):  # a peer may cause any number of them
                self._dropped.add(f"{escaped(subject)}: dropped: {escaped(text)}")
            case Incident(kind, subject, text, ids):
                level, template = _INCIDENTS[kind]
                lines = "\n".join(map(escaped, text.splitlines()))
                self._log.log(level, template, escaped(subject), lines, extra=about(**ids))
            case ScalingDecided(manager_id, units, draining, reason):
                drains = f"; drains {counted(draining, 'unit')}" if draining else ""
                text = f"the policy wants {counted(units, 'unit')} of {manager_id}: {reason}{drains}"
                self._log.info("%s", escaped(text), extra=about(manager=manager_id))
            case _:
                pass

    def flush(self) -> None:
        self._dropped.flush()
