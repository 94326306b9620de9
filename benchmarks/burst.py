"""Runs config/burst.toml on emulated AWS: a laptop with two slots, alone and with AWS Batch in addition.

Jobs start after a delay, as on Fargate. Both clusters run the same tasks at the same time on this machine, and tasks
only sleep. Prints both makespans and the number of tasks that ran in the cloud.

    python benchmarks/burst.py [--dispatch 45] [--tasks 60,200] [--seconds 1]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.testing.aws import AwsEmulator

CONFIG = Path(__file__).resolve().parents[1] / "config/burst.toml"
LAPTOP = 'worker_manager_id = "laptop"'
CLOUD = '[[worker_manager]]\ntype = "aws_hpc"'
SLOTS, JOBS = 2, 100
WAIT_SECONDS = 600.0


def where(seconds: float) -> str:
    time.sleep(seconds)
    return "cloud" if "AWS_BATCH_JOB_ID" in os.environ else "laptop"


def configured(folder: Path, endpoint_url: str, ports: ReservedPorts) -> str:
    text = CONFIG.read_text()
    for old, new in (
        ("tcp://127.0.0.1:8616", ports.address()),
        ("tcp://127.0.0.1:8617", ports.address(3)),
        (LAPTOP, f"{LAPTOP}\nmax_task_concurrency = {SLOTS}"),
        ("job_queue = ", f'aws_endpoint_url = "{endpoint_url}"\njob_queue = '),
        ("worker_requirements = []", 'batch_image = "emulated"'),
    ):
        if old not in text:
            sys.exit(f"{CONFIG} does not contain {old!r} anymore")
        text = text.replace(old, new)
    (folder / "burst.toml").write_text(text)
    return text


@contextmanager
def cluster(file: Path, ports: ReservedPorts) -> Iterator[Client]:
    with (file.parent / f"{file.stem}.log").open("w") as log:
        running = subprocess.Popen([sys.executable, "-m", "scaler.cli", "scaler", str(file)], stdout=log, stderr=log)
        try:
            with Client(ports.address()) as client:
                yield client
        finally:
            running.terminate()
            running.wait()
            ports.release()


def measure(client: Client, tasks: int, seconds: float) -> tuple[float, int]:
    """Return the makespan and the number of tasks that ran in the cloud."""
    client.submit(where, seconds).result(WAIT_SECONDS)  # gives the scheduler one measured duration
    began = time.perf_counter()
    futures = [client.submit(where, seconds) for _ in range(tasks)]
    places = [future.result(WAIT_SECONDS) for future in futures]
    return time.perf_counter() - began, places.count("cloud")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dispatch", type=float, default=45.0, help="seconds from a job's submission to its start")
    parser.add_argument("--tasks", default="60,200")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each task")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, AwsEmulator() as aws, ThreadPoolExecutor(2) as threads:
        os.environ.update(aws.environment)
        aws.batch.times.starting = options.dispatch
        folders = Path(directory, "alone"), Path(directory, "both")
        ports = ReservedPorts(4), ReservedPorts(4)
        files = [folder / "burst.toml" for folder in folders]
        for folder, port in zip(folders, ports, strict=True):
            folder.mkdir()
            text = configured(folder, aws.endpoint_url, port)
        setup = [sys.executable, "-m", "scaler.cli", "scaler_worker_manager", "aws_hpc", "setup", "-c", str(files[1])]
        subprocess.run(setup, check=True, stdout=subprocess.DEVNULL)
        text = files[0].read_text()
        files[0].write_text(text[: text.index(CLOUD)])
        with cluster(files[0], ports[0]) as alone, cluster(files[1], ports[1]) as both:
            for tasks in map(int, options.tasks.split(",")):
                waited = threads.submit(measure, alone, tasks, options.seconds)
                seconds, given = measure(both, tasks, options.seconds)
                print(
                    f"{tasks} x {options.seconds:g} s: laptop alone {waited.result()[0]:.1f} s, "
                    f"with the cloud {seconds:.1f} s, {given} tasks in the cloud",
                    flush=True,
                )


if __name__ == "__main__":
    main()
