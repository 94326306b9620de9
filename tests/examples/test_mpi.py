"""MPI programs run in gangs, on one host and on two."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from benchmarks.host_runs import Deployment
from tests.hosts import hosts, why_not

EXAMPLE = Path(__file__).parents[2] / "examples" / "mpi.py"
ON_HOSTS = """
import sys
sys.path.append(sys.argv[3])
import mpi
from scaler import Client

with Client(sys.argv[1], credentials=sys.argv[2]) as client:
    client.upload(mpi.__file__)
    print(client.gang(mpi.run_mpi, 2, [sys.executable, "-c", sys.argv[4]], 1, per_host=1).result()[0])
"""
NAMES = """
import socket
from mpi4py import MPI

names = MPI.COMM_WORLD.gather(socket.gethostname())
if MPI.COMM_WORLD.rank == 0:
    print(*sorted(names))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which mpi4py finds MPICH. Skips the tests if one of them is missing."""
    missing = [tool for tool in ("mpiexec", "hydra_pmi_proxy") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"MPICH is not installed: {', '.join(missing)}")
    libraries = tmp_path_factory.mktemp("libraries")
    if find_library("mpich"):  # Debian's name of the library that packages of mpi4py call libmpi
        (libraries / "libmpi.so.12").symlink_to(Path("/usr/lib", os.uname().machine + "-linux-gnu", "libmpich.so.12"))
    found = {"LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(
        [sys.executable, "-c", "from mpi4py import MPI"], env={**os.environ, **found}, capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mpi4py does not work: {done.stderr.decode().strip()[-200:]}")
    return found


def test_example_prints_its_documented_output(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "8 in 4 processes\n"), done.stderr


@pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}")
@pytest.mark.timeout(150)
def test_an_mpi_program_runs_on_two_hosts(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with hosts(3) as network:
        deployment = Deployment(network, tmp_path)
        try:
            address, credentials = deployment.start("scaler", 2)
            program = [sys.executable, "-c", ON_HOSTS, address, credentials, str(EXAMPLE.parent), NAMES]
            assert network[0].run(*program).split() == ["host1", "host2"]
        finally:
            for host in network.hosts:
                host.kill()
            deployment.close()
