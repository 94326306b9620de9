"""Start each service with a separate command, in any order and on any machine: services wait for each other.

Prints::

    answers: [0, 1, 4, 9]
    scaler_cluster ended with 0
    scaler_scheduler ended with 0
    scaler_object_storage_server ended with 0
"""

import subprocess
import sysconfig
import tempfile
from pathlib import Path

from scaler import Client

SCRIPTS = Path(sysconfig.get_path("scripts"))


def square(value):
    return value * value


with tempfile.TemporaryDirectory() as directory:
    # tcp://host:port between machines
    scheduler, storage = f"ipc://{directory}/scheduler", f"ipc://{directory}/storage"
    commands = [
        ["scaler_cluster", scheduler, "--num-of-workers", "2"],
        ["scaler_scheduler", scheduler, "--object-storage-address", storage],
        ["scaler_object_storage_server", storage],
    ]
    quiet = ["--logging-level", "WARNING"]
    services = [subprocess.Popen([SCRIPTS / name, *flags, *quiet]) for name, *flags in commands]
    try:
        with Client(address=scheduler) as client:
            print("answers:", client.map(square, range(4)))
    finally:
        for service in services:
            service.terminate()
            print(f"{Path(service.args[0]).name} ended with {service.wait()}", flush=True)
