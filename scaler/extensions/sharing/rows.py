"""Rows of the shares table. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Annotated, NamedTuple

from scaler.extensions.sharing.use import User, width_of
from scaler.monitor.columns import Column

_USED = Column("Used", "seconds", 3, "Slot-seconds of recent tasks, halved every two minutes")
_TOTAL = Column(
    "Total", "seconds", 2, "Slot-seconds used since the scheduler started.", metric="share_slot_seconds_total"
)
_STOPPED = Column(
    "Stopped", "count", 3, "Number of its tasks that were stopped for other tasks.", metric="share_stopped_total"
)
_COST = Column("Cost", "money", 3, "Cost of units, divided by use.", metric="share_cost_total", zero_is_none=True)


class ShareRow(NamedTuple):
    """A group, key, or client: the last nonempty field of the three. Clients have a row while they have tasks; keys and
    groups have a row if they have a share or ever had a task."""

    group: Annotated[str, Column("Group", help="Group of keys")] = ""
    key: Annotated[str, Column("Key")] = ""
    client: Annotated[str, Column("Client")] = ""
    weight: Annotated[float, Column("Weight", metric="share_weight")] = 1.0
    max_slots: Annotated[int, Column("Maximum", "count", metric="share_max_slots", zero_is_none=True)] = 0
    share: Annotated[float, Column("Share", help="Slots guaranteed at present", metric="share_slots")] = 0.0
    slots: Annotated[int, Column("Slots", "count", help="Slots in use", metric="share_used_slots")] = 0
    ready: Annotated[int, Column("Ready", "count", 2, "Tasks that wait for a slot", metric="share_ready")] = 0
    used: Annotated[float, _USED] = 0.0
    total: Annotated[float, _TOTAL] = 0.0
    cost: Annotated[float, _COST] = 0.0
    stopped: Annotated[int, _STOPPED] = 0


def share_rows(
    users: Collection[User], search: str, sees: Callable[[str], bool], slots_of: Callable[[User], float], now: float
) -> Iterator[ShareRow]:
    """Yield the rows of users, with keys after their group and clients after their key. sees: returns whether the
    reader may see a key. slots_of: returns the share (slots) of a user with tasks, ignoring the user's limit."""
    seen: set[User | None] = {user for user in users if user.title.startswith("key ") and sees(user.name)}
    seen |= {user.parent for user in users if user in seen}
    listed = [
        user
        for user in users
        if user.is_listed and (user.parent if user.is_owner else user) in seen and search in user.path
    ]
    running = defaultdict[User, float](float)
    for owner in users:
        for user in owner.line() if owner.is_owner else ():
            running[user] += owner.used_by(now) - owner.total_seconds
    for user in sorted(listed, key=attrgetter("path")):
        share = min(slots_of(user), user.share.max_slots or math.inf) if user.groups else 0.0
        yield ShareRow(
            **{each.title.partition(" ")[0]: each.name for each in user.line()},
            weight=user.share.weight,
            max_slots=user.share.max_slots,
            share=round(share, 2),
            slots=round(sum(group.assigned * width_of(group) for group in user.groups) - user.lent),
            ready=sum(group.ready for group in user.groups),
            used=round(user.used_seconds + running[user], 1),
            total=round(user.total_seconds + running[user], 1),
            cost=round(user.cost, 6),
            stopped=user.stopped,
        )
