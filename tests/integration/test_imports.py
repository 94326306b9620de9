"""Modules that an idle cluster does not import, because each costs every process memory and start-up time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOP = {"asyncio", "hashlib", "logging", "ssl", "subprocess", "zmq"}
"""Needed by any process with connections."""
HEAVY = LOOP | {
    "boto3",
    "capnp",
    "cloudpickle",
    "concurrent.futures.process",
    "email",
    "http.client",
    "importlib.metadata",
    "multiprocessing",
    "numpy",
    "prometheus_client",
    "psutil",
    "pydantic",
    "scaler.journal.journal",
    "scaler.testing.invariants",
    "starlette",
    "textual",
    "tomli",
    "tqdm",
    "urllib.request",
    "uvicorn",
}
SOME = {
    "scaler.cluster scheduler": LOOP,
    "scaler.cluster worker-manager": LOOP,
    "scaler.worker": LOOP,
    "user.py": LOOP,
    "processor": {"logging"},
}
"""Heavy modules that each kind of process may import, by the end of its command line."""

TELL = """
import atexit, os, sys

def tell():
    with open(os.path.join(os.environ["TOLD"], str(os.getpid())), "w") as file:
        file.write("\\n".join([" ".join(sys.orig_argv), *sys.modules]))

atexit.register(tell)
"""
USER = """
import os
from scaler import Client
from asked import modules
with Client(os.environ["ADDRESS"]) as client:
    print(*client.submit(modules).result())
"""
STACK = """
import os, subprocess, sys
from scaler import SchedulerClusterCombo
with SchedulerClusterCombo(n_workers=1) as combo:
    os.environ["ADDRESS"] = combo.get_address()
    subprocess.run([sys.executable, sys.argv[1]], check=True)
"""


def test_processes_of_a_cluster_import_only_what_they_need(tmp_path: Path) -> None:
    told, modules, user = tmp_path / "told", tmp_path / "modules", tmp_path / "user.py"
    told.mkdir()
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(TELL)
    (modules / "asked.py").write_text("import sys\ndef modules():\n    return list(sys.modules)\n")
    user.write_text(USER)
    path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    stack = subprocess.run(
        [sys.executable, "-c", STACK, str(user)],
        env={**os.environ, "PYTHONPATH": path, "TOLD": str(told)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (stack.returncode, stack.stderr) == (0, "")
    found = {"processor": set(stack.stdout.split())}
    for file in told.iterdir():
        command, *imported = file.read_text().splitlines()
        for kind in SOME:
            if command.endswith(kind):
                found[kind] = set(imported)
    assert {kind: (imported & HEAVY) - SOME[kind] for kind, imported in found.items()} == {kind: set() for kind in SOME}
