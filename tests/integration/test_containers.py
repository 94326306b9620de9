"""Clusters in containers: a read-only file system, a user without entry or home, and a separate process namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.short_forms import short_form

PROGRAM = """
from scaler import Client
with Client() as client:
    print(client.submit(pow, 2, 3).result(timeout=20), len(client.submit(bytes, 5_000_000).result(timeout=20)))
"""
READ_ONLY = """
mount --make-rprivate /
for place in $(awk '{print $2}' /proc/mounts | sort -r | uniq); do
    case $place in /proc*|/sys*|/dev*) continue;; esac
    mount -o remount,ro,bind "$place" 2>/dev/null && continue
    mount --bind "$place" "$place" && mount -o remount,ro,bind "$place"
done
! touch /tmp/x 2>/dev/null && exec "$@"
"""
CONTAINERS = {
    "a read-only file system": ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"],
    "a user without an entry": ["unshare", "--user", "--map-user=54321", "--map-group=54321"],
    "process ids of its own": ["unshare", "--pid", "--fork", "--mount-proc"],
}
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root, and the program unshare"
)


@pytest.mark.parametrize("kind", short_form([*CONTAINERS], 3))
def test_cluster_runs_in_a_container_with(kind: str) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}  # no HOME, no TMPDIR
    command = [*CONTAINERS[kind], sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=Path("/"), capture_output=True, text=True, check=False)
    assert done.stdout == "8 5000000\n", done.stderr
