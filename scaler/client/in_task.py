"""What a client in a task's arguments is pickled as.

A module of its own, and a light one: the first thing that a processor imports whose task has a client. Its fork server
takes that as the sign to import the rest as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaler.client.client import Client
    from scaler.client.kinds import Options
    from scaler.serialization import Serializer


def client_of_task(serializer: Serializer | None, options: Options) -> Client:
    """Return a client inside the task that runs here."""
    from scaler.client.client import nested_client  # noqa: PLC0415 (see the module)

    return nested_client(serializer, options)
