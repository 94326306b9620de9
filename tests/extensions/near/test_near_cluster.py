"""Tasks near names on a real cluster: most find an earlier task's data in their process's memory."""

from __future__ import annotations

import os
import time

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import TaskRejectedError

SECONDS = 30.0
NAMES = [f"model-{number}" for number in range(4)]


def predict(name: str) -> tuple[bool, int]:
    """Load a model into the process unless it is there. Return whether it was there, and the process."""
    loaded = vars(os).setdefault("loaded_models", set())
    found = name in loaded
    if not found:
        time.sleep(0.5)
        loaded.add(name)
    return found, os.getpid()


def test_most_tasks_find_their_model_in_memory() -> None:
    cluster = SchedulerClusterCombo(n_workers=2)
    try:
        with Client(cluster.get_address(), timeout_seconds=SECONDS) as client:
            client.submit(int).result(SECONDS)
            views = {name: client.options(near=name) for name in NAMES}
            for name in NAMES:
                assert [views[name].submit(predict, name).result(SECONDS)[0] for _ in range(2)] == [False, True]
            futures = [views[name].submit(predict, name) for _ in range(20) for name in NAMES]
            found = [future.result(SECONDS) for future in futures]
            assert sum(not was_there for was_there, _ in found) <= 1
            assert len({process for _, process in found}) == 2
            mapped = views["model-0"].map(predict, ["model-0"] * 3)
            assert all(was_there for was_there, _ in mapped)
    finally:
        cluster.shutdown()


def test_option_is_refused_without_the_extension() -> None:
    cluster = SchedulerClusterCombo(n_workers=1, extensions=["-near"])
    try:
        with Client(cluster.get_address(), timeout_seconds=SECONDS) as client:
            with pytest.raises(TaskRejectedError, match="need the extension 'near'"):
                client.submit_verbose(pow, (2, 3), near="x").result(SECONDS)
            assert client.submit(pow, 2, 3).result(SECONDS) == 8
    finally:
        cluster.shutdown()
