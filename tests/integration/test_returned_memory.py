"""Memory of read and released large results is returned to the system, in the client and the storage."""

from __future__ import annotations

import os

import psutil
import pytest

from scaler import Client, SchedulerClusterCombo
from tests.waiting import within

RESULTS = 1_500
SIZE = 100_000
MARGIN_BYTES = 50_000_000


def rss(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


@pytest.mark.alone
def test_memory_of_released_results_is_returned() -> None:
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        client.submit(os.urandom, SIZE).result(20)
        me = psutil.Process()
        scheduler = max(me.children(recursive=True), key=rss)  # the object storage is in its process
        before = {process: rss(process) for process in (me, scheduler)}
        futures = [client.submit(os.urandom, SIZE) for _ in range(RESULTS)]
        assert sum(len(future.result(60)) for future in futures) == RESULTS * SIZE
        for process, size in before.items():
            assert rss(process) > size + 2 * MARGIN_BYTES
        futures.clear()
        assert within(20, lambda: all(rss(process) < size + MARGIN_BYTES for process, size in before.items()))
