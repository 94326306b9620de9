"""A scheduler without the data plane: hosts use the object storage."""

from __future__ import annotations

import numpy as np

from scaler import Client, SchedulerClusterCombo


def make(seed: int) -> np.ndarray:
    return np.full(500_000, float(seed))


def test_workers_use_the_object_storage_if_the_scheduler_refuses_the_store_of_their_host() -> None:
    off = ("-data_plane",)
    with (
        SchedulerClusterCombo(n_workers=2, host_name="alpha", extensions=off) as combo,
        Client(combo.get_address()) as client,
    ):
        first = client.submit(make, 1)
        assert client.submit(np.sum, client.submit(np.negative, first)).result() == -500_000.0
        sent = client.send_object(np.ones(500_000))
        assert client.map(np.dot, [sent] * 3, [first] * 3) == [500_000.0] * 3
        values = client.get({"a": make(2), "b": (np.negative, "a"), "c": (np.add, "a", "b")}, ["c"])
        assert not values["c"].any()
