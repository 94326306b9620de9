"""The history as printed in a shell."""

from __future__ import annotations

from scaler.extensions.history.lines import folded
from scaler.monitor.history_rows import EventRow


def test_clients_that_join_and_leave_repeatedly_share_a_log_line() -> None:
    clients = [EventRow(float(n), kind, f"client c{n}") for n in range(7) for kind in ("joined", "left")]
    lost = EventRow(7.0, "worker lost", "m-1")
    worker = EventRow(8.0, "joined", "worker m-2")
    few = [EventRow(9.0, "joined", "client d"), EventRow(9.0, "left", "client d")]
    assert list(folded([*clients, lost, worker, *few])) == [
        EventRow(6.0, "clients", "7 joined, 7 left", "c0, c1, c2, c3, c4, and 2 more"),
        lost,
        worker,
        *few,
    ]
