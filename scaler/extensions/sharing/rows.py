"""The rows of the table of shares."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from scaler.protocol.monitor_columns import Column


class ShareRow(NamedTuple):
    """A group, key, or client with tasks. share: slots that it may count on now. used: slot-seconds of recent tasks, of
    which half are forgotten every two minutes."""

    user: Annotated[str, Column("Who")] = ""
    within: Annotated[str, Column("Of", help="Key of a client, or group of a key")] = ""
    weight: Annotated[float, Column("Weight")] = 1.0
    max_slots: Annotated[int, Column("Maximum", "count", zero_is_none=True)] = 0
    share: Annotated[float, Column("Share", help="Slots that it may count on now")] = 0.0
    slots: Annotated[int, Column("Slots", "count")] = 0
    ready: Annotated[int, Column("Ready", "count")] = 0
    used: Annotated[float, Column("Used", help="Slot-seconds of recent tasks")] = 0.0
