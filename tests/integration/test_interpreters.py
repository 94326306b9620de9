"""The interpreters of a cluster: one hash seed for all workers, and the options of the starting program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.interpreter import HASH_SEED_VARIABLE
from tests.short_forms import short_form

PROGRAM = """
import json, sys
from scaler import Client

def interpreter():
    import sys, warnings
    try:
        warnings.warn("old", DeprecationWarning)
        warns = "no"
    except DeprecationWarning:
        warns = "raises"
    names = "optimize", "dev_mode", "utf8_mode", "dont_write_bytecode", "no_user_site", "safe_path"
    return [*(int(getattr(sys.flags, name)) for name in names), "faulthandler" in sys._xoptions, warns, __debug__]

if __name__ == "__main__":
    with Client() as client:
        print(json.dumps([client.submit(interpreter).result(), client.submit(hash, "text").result()]))
"""


@contextmanager
def worker_by_hand(address: str, capability: str, **variables: str) -> Iterator[None]:
    """Run a worker like any backend: with its document, and no other settings of ours."""
    config = WorkerConfig(
        scheduler_address=address, worker_manager_id=capability, unit_id="1", per_worker_capabilities={capability: 1}
    )
    environment = {name: value for name, value in os.environ.items() if name != HASH_SEED_VARIABLE}
    environment |= {WORKER_CONFIG_VARIABLE: config.to_json(), **variables}
    process = subprocess.Popen([sys.executable, "-P", "-m", "scaler.worker"], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def test_all_workers_share_a_hash_seed_unless_overridden() -> None:
    with SchedulerClusterCombo(n_workers=1) as cluster:
        address = cluster.get_address()
        with (
            worker_by_hand(address, "plain"),
            worker_by_hand(address, "own", PYTHONHASHSEED="7"),
            Client(address) as client,
        ):

            def hash_on(capability: str) -> int:
                return int(client.options(capabilities={capability: 1}).submit(hash, "text").result(20))

            local, plain, own = client.submit(hash, "text").result(20), hash_on("plain"), hash_on("own")
    chosen = subprocess.run(
        [sys.executable, "-c", "print(hash('text'))"], env={HASH_SEED_VARIABLE: "7"}, capture_output=True, check=True
    )
    assert plain == local
    assert own == int(chosen.stdout)


@pytest.mark.parametrize(
    ("options", "expected"),
    short_form(
        [
            (["-OO", "-B", "-X", "utf8"], [2, 0, 1, 1, 0, 1, False, "no", False]),
            ([], [0, 0, 0, 0, 0, 1, False, "no", True]),
            (["-X", "dev", "-W", "error", "-X", "faulthandler"], [0, 1, 0, 0, 0, 1, True, "raises", True]),
            (["-I"], [0, 0, 0, 0, 1, 1, False, "no", True]),
        ]
    ),
)
def test_tasks_run_with_the_interpreter_options_of_the_starting_program(
    options: list[str], expected: list[object]
) -> None:
    """-I implies -E: Python's variables do not reach the tasks, but the cluster's hash seed does."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    if "-I" in options:
        environment |= {"PYTHONOPTIMIZE": "1", "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found, hashed = json.loads(ran.stdout)
    plain = subprocess.run(
        [sys.executable, "-c", "print(hash('text'))"], env={HASH_SEED_VARIABLE: "6640"}, capture_output=True, check=True
    )
    assert (found, hashed) == (expected, int(plain.stdout))
