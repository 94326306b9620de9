"""Fill one worker manager before the next: your own machines first, then rented ones for the remaining work.

Here, both managers start workers on this machine. With a preload hook, each tells its workers where they are.

Prints::

    tasks ran at: cloud, cloud, house
"""

import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from scaler import Client

SCALER = Path(sysconfig.get_path("scripts"), "scaler")
SETTINGS = """
[scheduler]
bind_address = "{address}"
logging_level = "WARNING"
policy_engine_type = "waterfall_v1"
policy_content = '''
priority,worker_manager_id,max_task_concurrency
1,house,1
2,cloud,8
'''

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "house"
max_task_concurrency = 1
preload = "place:enter('house')"
logging_level = "WARNING"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "cloud"
max_task_concurrency = 2
preload = "place:enter('cloud')"
logging_level = "WARNING"
"""
PLACE = """
def enter(name):
    global here
    here = name
"""


def meet(room: Path, guest: str, guests: int) -> str:
    """Wait for all guests, so each needs a separate worker. Return this worker's location."""
    (room / guest).touch()
    while len(list(room.iterdir())) < guests:
        time.sleep(0.01)
    return sys.modules["place"].here


with tempfile.TemporaryDirectory() as directory:
    address = f"ipc://{directory}/scheduler"
    settings, room = Path(directory, "cluster.toml"), Path(directory, "room")
    settings.write_text(SETTINGS.format(address=address))
    Path(directory, "place.py").write_text(PLACE)
    room.mkdir()

    # Workers import modules from the directory in which `scaler` was started, and from PYTHONPATH.
    scaler = subprocess.Popen([SCALER, settings], cwd=directory, stdout=subprocess.DEVNULL)
    try:
        with Client(address=address) as client:
            guests = ["ann", "bob", "eve"]
            futures = [client.submit(meet, room, guest, len(guests)) for guest in guests]
            print("tasks ran at:", ", ".join(sorted(future.result() for future in futures)))
    finally:
        scaler.terminate()
        scaler.wait()
