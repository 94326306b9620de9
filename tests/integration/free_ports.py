"""Addresses on which no other process listens."""

from __future__ import annotations

from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER, ReservedPorts


def free_addresses(host: str = "127.0.0.1", count: int = PORTS_OF_A_SCHEDULER) -> list[str]:
    """Return addresses on this host with consecutive ports, by default enough for a scheduler."""
    ports = ReservedPorts(count)
    ports.release()
    return [ports.address(index).replace("127.0.0.1", host) for index in range(count)]
