"""Results with a second copy survive their host's store. For other results, the error suggests a remedy."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.client.future import ScalerFuture
from scaler.config.worker import WorkerConfig
from scaler.errors import ObjectLostError
from scaler.extensions.data_plane.host import place
from tests.waiting import until, wait_for_file

SIZE = 500_000
"""Numbers of an array: 4 MB."""


def make(seed: int, size: int = SIZE) -> np.ndarray:
    return np.full(size, float(seed))


def make_later(seed: int, path: str) -> np.ndarray:
    wait_for_file(path)
    return make(seed)


def first(array: np.ndarray) -> float:
    return float(array[0])


@pytest.fixture(scope="module")
def combo() -> Iterator[SchedulerClusterCombo]:
    """Yield a cluster whose workers have a host name, and so a separate store on this machine."""
    with SchedulerClusterCombo(n_workers=2, host_name="alpha") as combo:
        yield combo


def kill_store(combo: SchedulerClusterCombo) -> None:
    """Kill the store of the only host, and wait for the next one."""

    def running() -> place.RunningStore | None:
        address = combo.get_address()
        config = WorkerConfig(scheduler_address=address, worker_manager_id="", unit_id="", host_name="alpha")
        return place.find(place.file_name(config))

    before = until(running)
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: (found := running()) is not None and found.pid != before.pid)


def has_stored(client: Client, *futures: ScalerFuture) -> bool:
    """Return whether the object storage has the results of these tasks."""
    return all("object storage" in [holder.host for holder in client.who_has(future)] for future in futures)


def test_persisted_results_of_run_once_tasks_survive_their_host(combo: SchedulerClusterCombo, tmp_path: Path) -> None:
    with Client(combo.get_address()) as client:
        made = client.submit_verbose(make, (1,), retries=0)
        assert client.submit(first, made).result() == 1.0
        made_later = client.submit_verbose(make_later, (2, str(tmp_path / "go")), retries=0)
        used = client.submit(first, made_later)
        client.persist([made, made_later])
        (tmp_path / "go").touch()
        assert used.result() == 2.0
        until(lambda: has_stored(client, made, made_later))
        kill_store(combo)
        assert client.submit(first, made).result() == 1.0
        assert [made.result()[0], made_later.result()[0]] == [1.0, 2.0]


def test_durable_session_results_survive_program_and_host(combo: SchedulerClusterCombo) -> None:
    with Client(combo.get_address(), session="nightly") as client:
        made = client.submit(make, 4, key="four")
        assert client.submit(first, made).result() == 4.0
        until(lambda: has_stored(client, made))
    kill_store(combo)
    with Client(combo.get_address(), session="nightly") as client:
        [found] = client.futures(key="four")
        assert found.result()[0] == 4.0


def test_lost_result_that_cannot_rerun_names_task_host_and_remedy(combo: SchedulerClusterCombo) -> None:
    with Client(combo.get_address()) as client:

        def make_at_host() -> ScalerFuture | None:
            made = client.submit_verbose(make, (5,), retries=0)
            until(made.done)  # no task uses it yet: processors keep their last inputs
            return None if has_stored(client, made) else made  # present while the host's store starts

        made = until(make_at_host)
        kill_store(combo)
        used = client.submit(first, made)
        asked = made.exception()
        errors = used.exception(), asked
    task = made.task_id.hex()
    for error in errors:
        assert isinstance(error, ObjectLostError)
        assert "with host " in str(error)
        assert f"make ({task}) has retries=0 and does not run again; client.persist(" in str(error)
    assert str(asked).startswith(f"the result of make ({task}) is lost: object ")
