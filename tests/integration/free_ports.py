"""Addresses on which no other process listens."""

from __future__ import annotations

from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER, ReservedPorts


def free_addresses(host: str = "127.0.0.1", count: int = PORTS_OF_A_SCHEDULER) -> list[str]:
    """Return addresses of this host with consecutive ports, by default as many as a scheduler needs."""
    ports = ReservedPorts(count)
    ports.release()
    return [ports.address(index).replace("127.0.0.1", host) for index in range(count)]
