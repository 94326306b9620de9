"""Run an MPI program in a gang: each member starts processes on its host, without ssh. Needs MPICH (`apt-get install
mpich`) on the hosts, and mpi4py for this program.

Prints::

    8 in 4 processes
"""

import shlex
import socket
import subprocess
import sys
import time

from scaler import Client, SchedulerClusterCombo, current_gang

PROGRAM = """
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.reduce(2, op=MPI.SUM, root=0)
if world.rank == 0:
    print(total, "in", world.size, "processes")
"""


def run_mpi(command, processes):
    """Run an MPI program with this many processes per member. Returns its output in the first member."""
    gang = current_gang()
    if gang.rank > 0:
        with connected(gang.hosts[0], gang.port) as connection:
            proxy = connection.makefile().read()
        subprocess.run(shlex.split(proxy), check=True)
        return ""
    members = ",".join(f"member{rank}:{processes}" for rank in range(gang.size))
    start = ["mpiexec", "-launcher", "manual", "-localhost", gang.hosts[0], "-hosts", members]
    start += ["-n", str(gang.size * processes), *command]
    with (
        socket.create_server(("", gang.port)) as server,
        subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as mpiexec,
    ):
        # mpiexec prints the commands of its proxies, which start the processes, and waits for the proxies to connect.
        proxies = [line.partition(":")[2] for line in iter(mpiexec.stdout.readline, "HYDRA_LAUNCH_END\n")]
        for proxy in proxies[1:]:
            with server.accept()[0] as connection:
                connection.sendall(proxy.encode())
        subprocess.run(shlex.split(proxies[0]), check=True)
        output = mpiexec.stdout.read()
    if mpiexec.returncode:
        raise RuntimeError(f"the MPI program ended with {mpiexec.returncode}: {output}")
    return output


def connected(host, port):
    """Connect to the first member, which may not listen yet."""
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.05)


if __name__ == "__main__":
    with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
        gang = client.gang(run_mpi, 2, [sys.executable, "-c", PROGRAM], 2)
        print(gang.result()[0], end="")
