"""Second names of objects that only stores of hosts have: they are made there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler.protocol.messages import LinkObject
from scaler.scheduler.core.data.directory import OBJECT_STORAGE, Directory
from scaler.scheduler.core.data.tracker import Tracker
from scaler.scheduler.core.failures import Failures


def link(links: Iterable[LinkObject], directory: Directory, tracker: Tracker, failures: Failures) -> list[LinkObject]:
    """Have each object linked by a store that has it. Returns the links for the object storage."""
    for_storage: list[LinkObject] = []
    for each in links:
        copies = directory.find(each.target)
        holders = set() if copies is None else copies.holders & tracker.links.keys() - {tracker.backend}
        if copies is None or not holders or OBJECT_STORAGE in holders:
            for_storage.append(each)
            continue
        holder = min(holders)
        # Before everything else: it may be forgotten in this step.
        tracker.mail.messages.setdefault(holder, []).insert(0, each)
        tracker.held(holder, each.id, copies.size_bytes)
        failures.linked(each.request, copies.size_bytes)
    return for_storage
