"""The accounting database of a real Slurm on this machine: MariaDB and slurmdbd as test processes."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler.cluster.supervisor import ReservedPorts
from tests.engines.slurm_rig import SlurmCluster, missing_programs, running_slurm, search_path
from tests.waiting import until

PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
DATABASE_CONFIG = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounts
"""
CONFIG = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/munge/socket
AccountingStorageEnforce=limits
MaxArraySize=1
"""


@contextmanager
def slurm_with_accounts(directory: Path) -> Iterator[SlurmCluster]:
    """Yield a running Slurm whose cluster `tests` forbids arrays and enforces account limits.

    Skips the test if Slurm cannot run here.
    """
    missing = missing_programs() or ", ".join(name for name in PROGRAMS if not shutil.which(name, path=search_path()))
    if missing:
        pytest.skip(f"THERE IS NO SLURM WITH A DATABASE HERE, so no limit of accounts is tested: {missing}")
    ports = ReservedPorts(1)
    ports.release()
    names = {"directory": directory, "host": socket.gethostname(), "port": ports.first}
    config = directory / "slurmdbd.conf"
    config.write_text(DATABASE_CONFIG.format(**names))
    config.chmod(0o600)
    with running_slurm(directory, CONFIG.format(**names), lambda slurm: start_accounts(slurm, ports.first)) as made:
        yield made


def start_accounts(slurm: SlurmCluster, port: int) -> None:
    """Start the database and slurmdbd, and add the cluster and root's account."""
    data, server = slurm.directory / "database", slurm.directory / "database.socket"
    small = ("--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=8M")
    subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db", *small,
         "--auth-root-authentication-method=normal"],
        env=slurm.environment, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    slurm.environment["MYSQL_UNIX_PORT"] = str(server)
    own = [f"--datadir={data}", f"--socket={server}", f"--pid-file={data}/pid", "--skip-networking", "--user=root"]
    slurm.run_daemon("mariadbd", ["mariadbd", "--no-defaults", *own, *small])
    until(server.exists, 30.0)
    slurm.run_daemon("slurmdbd", ["slurmdbd", "-D"])
    until(lambda: not listens(port), 30.0, 0.1)
    slurm.run("sacctmgr", "-i", "add", "cluster", "tests")


def listens(port: int) -> int:
    """Return 0 if a server listens on this port, otherwise the error number."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port))


def limit_jobs(slurm: SlurmCluster, most: int) -> None:
    """Limit the number of root's jobs in the queue."""
    slurm.run("sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={most}")
    show = ("scontrol", "show", "assoc_mgr", "users=root", "flags=assoc")
    until(lambda: f"MaxSubmitJobs={most}(" in slurm.output_of(*show), 30.0, 0.1)
