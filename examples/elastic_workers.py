"""Scale workers with demand: `scaler FILE` starts a scheduler and a worker manager, which starts workers as needed.

The scaling policy sets the number of workers: here one for each task that could run, up to max_task_concurrency. Idle
workers stop after a while.

Prints::

    3 musicians, 3 workers
"""

import os
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from scaler import Client

SCALER = Path(sysconfig.get_path("scripts"), "scaler")  # the command in this Python's environment
SETTINGS = """
[scheduler]
bind_address = "{address}"
policy_engine_type = "simple"
policy_content = "allocate=even_load; scaling=vanilla"
logging_level = "WARNING"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "here"
max_task_concurrency = 4
logging_level = "WARNING"
"""


def play(stage: Path, instrument: str, musicians: int) -> int:
    """Wait until all musicians are on stage, so each needs a separate worker. Return the worker's process id."""
    (stage / instrument).touch()
    while len(list(stage.iterdir())) < musicians:
        time.sleep(0.01)
    return os.getpid()


with tempfile.TemporaryDirectory() as directory:
    address = f"ipc://{directory}/scheduler"  # tcp://host:port if other machines take part
    settings, stage = Path(directory, "cluster.toml"), Path(directory, "stage")
    settings.write_text(SETTINGS.format(address=address))
    stage.mkdir()

    scaler = subprocess.Popen([SCALER, settings], stdout=subprocess.DEVNULL)  # logs the components that it starts
    try:
        with Client(address=address) as client:  # waits for the scheduler
            trio = ["piano", "violin", "cello"]
            futures = [client.submit(play, stage, instrument, len(trio)) for instrument in trio]
            workers = {future.result() for future in futures}
            print(f"{len(trio)} musicians, {len(workers)} workers")
    finally:
        scaler.terminate()
        scaler.wait()
