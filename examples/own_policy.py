"""Control the number of workers with a custom scaling policy: the class in tasks_per_worker.py.

The scheduler finds policies by the entry points of installed packages. This program writes the metadata that `pip
install` would create from these lines in a pyproject.toml into a temporary directory:

    [project.entry-points."scaler.scaling_policies"]
    tasks_per_worker = "tasks_per_worker:TasksPerWorker"

A policy is pure, so you can try it without a cluster, as the first lines below do.

Prints::

    plan for 25 tasks: 3 workers (25 tasks, 10 per worker)
    25 tasks ran on 3 workers
"""

import os
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from tasks_per_worker import TasksPerWorker

from scaler import Client
from scaler.needs import Needs, Offers
from scaler.policy.view import ClusterView, Demand, ManagerView

SCALER = Path(sysconfig.get_path("scripts"), "scaler")
SETTINGS = """
[scheduler]
bind_address = "{address}"
policy_engine_type = "tasks_per_worker"
policy_content = "10"
logging_level = "WARNING"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "here"
max_task_concurrency = 8
logging_level = "WARNING"
"""

ENTRY_POINTS = """
[scaler.scaling_policies]
tasks_per_worker = tasks_per_worker:TasksPerWorker
"""
METADATA = "Metadata-Version: 2.1\nName: tasks-per-worker\nVersion: 1.0\n"


def work(desks: Path, workers: int) -> int:
    """Take a desk for this worker, and wait until all workers have one. Return the worker's process id."""
    (desks / str(os.getpid())).touch()
    while len(list(desks.iterdir())) < workers:
        time.sleep(0.01)
    return os.getpid()


manager = ManagerView("here", "baremetal_native", Offers(), max_slots=8, unit_slots=1, units_running=0)
demand = Demand(Needs(), "work", queued=25, running=0, task_seconds=None)
wanted = TasksPerWorker("10").plan(ClusterView(now=0.0, demand=(demand,), managers=(manager,)))["here"]
print(f"plan for 25 tasks: {wanted.units} workers ({wanted.reason})")

with tempfile.TemporaryDirectory() as directory:
    address = f"ipc://{directory}/scheduler"
    settings, desks, package = (
        Path(directory, name) for name in ("cluster.toml", "desks", "tasks_per_worker.dist-info")
    )
    settings.write_text(SETTINGS.format(address=address))
    desks.mkdir()
    package.mkdir()
    (package / "METADATA").write_text(METADATA)
    (package / "entry_points.txt").write_text(ENTRY_POINTS)

    paths = os.pathsep.join([directory, str(Path(__file__).parent)])
    scaler = subprocess.Popen([SCALER, settings], env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    try:
        with Client(address=address) as client:
            futures = [client.submit(work, desks, wanted.units) for _ in range(25)]
            print(f"25 tasks ran on {len({future.result() for future in futures})} workers")
    finally:
        scaler.terminate()
        scaler.wait()
