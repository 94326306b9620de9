"""Let workers come and go with the work: `scaler FILE` starts a scheduler and a worker manager, which starts workers.

How many there are, the scaling policy says: here one for each task that could run, up to max_task_concurrency. Workers
that have had nothing to do for a while are stopped again.

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

SCALER = Path(sysconfig.get_path("scripts"), "scaler")  # the command, beside the python that runs this
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
    """Begin when all musicians are on the stage: each needs a worker of its own. Return which worker played."""
    (stage / instrument).touch()
    while len(list(stage.iterdir())) < musicians:
        time.sleep(0.01)
    return os.getpid()


with tempfile.TemporaryDirectory() as directory:
    address = f"ipc://{directory}/scheduler"  # tcp://host:port where others than this machine take part
    settings, stage = Path(directory, "cluster.toml"), Path(directory, "stage")
    settings.write_text(SETTINGS.format(address=address))
    stage.mkdir()

    scaler = subprocess.Popen([SCALER, settings], stdout=subprocess.DEVNULL)  # it tells there what it starts
    try:
        with Client(address=address) as client:  # waits for the scheduler
            trio = ["piano", "violin", "cello"]
            futures = [client.submit(play, stage, instrument, len(trio)) for instrument in trio]
            workers = {future.result() for future in futures}
            print(f"{len(trio)} musicians, {len(workers)} workers")
    finally:
        scaler.terminate()
        scaler.wait()
