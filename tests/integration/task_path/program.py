"""Submits one task at a time to a warm cluster, each in a separate window: see sitecustomize in this directory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from scaler import Client, SchedulerClusterCombo

WINDOWS = 40
WARM_UP_TASKS = 200
DONE = 255


def double(value: int) -> int:
    return 2 * value


def main() -> None:
    with Path(os.environ["TASK_PATH_FLAG"]).open("r+b") as file:
        flag = mmap.mmap(file.fileno(), 1)
    with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
        for value in range(WARM_UP_TASKS):
            assert client.submit(double, value).result() == 2 * value
        for window in range(1, WINDOWS + 1):
            flag[0] = window
            assert client.submit(double, window).result() == 2 * window
            flag[0] = 0
        flag[0] = DONE
        assert client.submit(double, 1).result() == 2  # wakes every process, which then writes its record


if __name__ == "__main__":
    main()
