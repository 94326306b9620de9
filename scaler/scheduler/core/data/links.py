"""Aliases of objects that only host stores have. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.protocol.messages import LinkObject
from scaler.scheduler.core.data.directory import OBJECT_STORAGE, Directory
from scaler.scheduler.core.data.tracker import Tracker
from scaler.scheduler.core.failures import Failures


def link(links: Iterable[LinkObject], directory: Directory, tracker: Tracker, failures: Failures) -> list[LinkObject]:
    """Link each object at a store that has it. Returns the links that the object storage must make."""
    for_storage: list[LinkObject] = []
    for each in links:
        copies = directory.find(each.target)
        holders = set() if copies is None else copies.holders & tracker.links.keys() - {tracker.backend}
        if copies is None or not holders or OBJECT_STORAGE in holders:
            for_storage.append(each)
            continue
        holder = min(holders)
        # Ahead of other messages: the target may be forgotten in this step.
        tracker.mail.messages.setdefault(holder, []).insert(0, each)
        tracker.held(holder, each.id, copies.size_bytes)
        failures.linked(each.request, copies.size_bytes)
    return for_storage
