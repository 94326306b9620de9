"""The cluster of a chaos run: real processes with keys, a proxied side, and a separate small disk.

The workers of the managers "far" and "farther" have host names, and so a store for each of these two hosts.

The seed decides whether clients use the object storage's proxy, and whether the servers have a state directory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from scaler.cluster.supervisor import ReservedPorts
from tests.chaos.faults import CLIENT_LEASE_SECONDS, WORKER_LEASE_SECONDS
from tests.chaos.proxy import Proxy
from tests.chaos.stores import Stores
from tests.chaos.workload import Order
from tests.simulation.machine import SIMULATED
from tests.waiting import within

ROOT = Path(__file__).parents[2]
MARK = "CHAOS_RUN"
SHARED_MEMORY = Path("/dev/shm")
FOREIGN = ("sem.mp-", SIMULATED)
"""Prefixes of shared memory that belongs to other programs. A cluster's shared memory has no name."""
KEPT_FILES = ("web-token",)
"""Files of the runtime directory that outlive a cluster by design."""
DISK_MIB = 1024
MANAGER = "worker-manager"
KINDS = {"scheduler": "scheduler", "object storage": "object-storage-server", "page": "web-ui"}
LEVELS = ("manager", "agent", "fork server", "processor")
"""Processes of a worker, each the parent of the next."""
END_SECONDS = 20.0
NEAR_SLOTS, FAR_SLOTS = 2, 2
STORE_FILES = "run/scaler/*.store"

FILE = """
[object_storage_server]
bind_address = "tcp://127.0.0.1:{storage}"
credentials = "{keys}"
{state}
logging_paths = ["/dev/stdout", "{disk}/storage.log"]

[scheduler]
bind_address = "tcp://127.0.0.1:{scheduler}"
object_storage_address = "tcp://127.0.0.1:{storage}"
advertised_object_storage_address = "tcp://127.0.0.1:{advertised}"
monitor_address = "tcp://127.0.0.1:{monitor}"
credentials = "{keys}"
worker_timeout_seconds = {worker_lease}
client_timeout_seconds = {client_lease}
limits = "db=2"
{state}
audit_path = "{disk}/audit.log"
logging_paths = ["/dev/stdout", "{disk}/scheduler.log"]

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "near"
scheduler_address = "tcp://127.0.0.1:{scheduler}"
object_storage_address = "tcp://127.0.0.1:{storage}"
mode = "fixed"
max_task_concurrency = {near_slots}
heartbeat_interval_seconds = 1
per_worker_capabilities = "near"
credentials = "{keys}"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "far"
scheduler_address = "tcp://127.0.0.1:{far_scheduler}"
object_storage_address = "tcp://127.0.0.1:{far_storage}"
max_task_concurrency = {far_slots}
heartbeat_interval_seconds = 1
host_name = "far"
per_worker_capabilities = "far"
credentials = "{far}"

[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "farther"
scheduler_address = "tcp://127.0.0.1:{far_scheduler}"
object_storage_address = "tcp://127.0.0.1:{far_storage}"
mode = "fixed"
max_task_concurrency = {far_slots}
heartbeat_interval_seconds = 1
host_name = "farther"
per_worker_capabilities = "farther"
credentials = "{far}"

[webui]
web_host = "127.0.0.1"
web_port = {page}
monitor_address = "tcp://127.0.0.1:{monitor}"
credentials = "{keys}"
"""


class ClientProcess:
    """One client of the workload."""

    def __init__(self, order: Order, process: subprocess.Popen[bytes]) -> None:
        self.order, self.process = order, process


class Cluster:
    """Starts everything, restarts exited processes, finds the targets of faults, and detects leftovers."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.history = directory / "history"
        self.disk = directory / "disk"
        self.clients: list[ClientProcess] = []
        self.has_disk = False
        self._seed = seed
        self._storage_is_far = bool(seed & 1)
        self.is_durable = bool(seed & 2)
        """The scheduler and the object storage have a state directory."""
        self._mark = uuid.uuid4().hex
        self._shared_memory = set(SHARED_MEMORY.iterdir())
        for name in ("history", "disk", "tmp", "run", "home", "out"):
            (directory / name).mkdir(mode=0o700)
        self._mount()
        self._clock = directory / "clock"
        self._clock.write_bytes(struct.pack("d", 0.0))
        ports = ReservedPorts(5)
        storage, scheduler, monitor, page = (int(ports.address(n).rpartition(":")[2]) for n in (1, 0, 2, 3))
        self.address = f"tcp://127.0.0.1:{scheduler}"
        self.page = f"http://127.0.0.1:{page}"
        self.proxies = {
            "proxy of the scheduler": Proxy(scheduler, seed),
            "proxy of the object storage": Proxy(storage, seed + 1),
        }
        far_scheduler, far_storage = (proxy.port for proxy in self.proxies.values())
        self._stores_path = directory / "stores"
        self.stores = Stores(self._stores_path, seed)
        self.far_address = f"tcp://127.0.0.1:{far_scheduler}"
        self._keys = directory / "keys"
        self.keys("init", str(self._keys))
        self._file = directory / "chaos.toml"
        self._file.write_text(
            FILE.format(
                storage=storage,
                scheduler=scheduler,
                monitor=monitor,
                page=page,
                advertised=far_storage if self._storage_is_far else storage,
                far_scheduler=far_scheduler,
                far_storage=far_storage,
                worker_lease=WORKER_LEASE_SECONDS,
                client_lease=CLIENT_LEASE_SECONDS,
                keys=self._keys,
                state=f'state_directory = "{self.disk}/state"' if self.is_durable else "",
                far=self.new_key("far", "manager"),
                disk=self.disk,
                near_slots=NEAR_SLOTS,
                far_slots=FAR_SLOTS,
            )
        )
        ports.release()
        self._stopping = threading.Event()
        self.launches = 0
        self.refused_starts = 0
        """Launches that failed because the disk was full when the servers started."""
        self._was_full = False
        """The disk has been full since the last launch."""
        self._launcher = self._launch()
        self._keeper = threading.Thread(target=self._keep, name="keeper")
        self._keeper.start()

    # -- processes

    def _environment(self) -> dict[str, str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("SCALER_")}
        return inherited | {
            MARK: self._mark,
            "HOME": str(self.directory / "home"),
            "TMPDIR": str(self.directory / "tmp"),
            "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent / 'site'}",
            "CHAOS_CLOCK": str(self._clock),
            "CHAOS_STORES": str(self._stores_path),
        }

    def _popen(
        self, name: str, argv: tuple[str, ...], variables: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.directory / "out" / name.replace(" ", "-")).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", *argv],
                env=self._environment() | (variables or {}),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _launch(self) -> subprocess.Popen[bytes]:
        self.launches += 1
        self._was_full = self._filler.exists()
        return self._popen("launcher", ("-m", "scaler.cli", "scaler", str(self._file)))

    def _keep(self) -> None:
        """Restart the launcher after an exit, as a user would."""
        while not self._stopping.wait(0.2):
            code = self._launcher.poll()
            if code is not None:
                self.refused_starts += self._was_full and code > 0
                self._launcher = self._launch()

    def keys(self, *words: str) -> None:
        """Run `scaler keys`."""
        subprocess.run(
            [sys.executable, "-P", "-m", "scaler.cli", "scaler", "keys", *words],
            env=self._environment(),
            cwd=self.directory,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )

    def new_key(self, name: str, role: str) -> Path:
        path = self.directory / f"{name}.credentials"
        self.keys("add", name, "--role", role, "--directory", str(self._keys), "--output", str(path))
        return path

    def revoke(self, name: str) -> None:
        self.keys("revoke", name, "--directory", str(self._keys))

    def order(self, name: str, *, is_far: bool, until: float, keeps_objects: bool = True, session: str = "") -> Order:
        """Return a client's settings: a remote client reaches the scheduler through the proxy, which requires a key."""
        address = self.far_address if is_far else self.address
        key = str(self.new_key(name, "client")) if is_far or self._storage_is_far else None
        return Order(name, address, str(self.history), self._seed, until, key, keeps_objects, session)

    def start_client(
        self, order: Order, program: str = "tests.chaos.workload", variables: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a client. variables: additional environment variables."""
        process = self._popen(order.name, ("-m", program, json.dumps(asdict(order))), variables)
        self.clients.append(ClientProcess(order, process))
        return process

    def find(self, target: str) -> list[psutil.Process]:
        """Return the living processes of a target in the fault script, in a stable order."""
        if target == "client":
            return _living([client.process.pid for client in self.clients])
        if target == "store":
            return [process for process, _ in self.stores.living()]
        launcher = _living([self._launcher.pid])
        if target == "launcher":
            return launcher
        level = LEVELS.index(target) if target in LEVELS else 0
        found = [
            child for parent in launcher for child in _children(parent) if _kind(child) == KINDS.get(target, MANAGER)
        ]
        for _ in range(level):
            found = [child for process in found for child in _children(process)]
        return found

    # -- faults that are not signals

    def jump_clock(self, seconds: float) -> None:
        with self._clock.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    def _mount(self) -> None:
        try:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", str(self.disk)],
                check=True,
                capture_output=True,
            )
            self.has_disk = True
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no small disk can be mounted ({error}), so no disk gets full", flush=True)

    @property
    def _filler(self) -> Path:
        return self.disk / "filler"

    def fill_disk(self) -> None:
        self._was_full = True
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), 1024 * 1024)

    def empty_disk(self) -> None:
        self._filler.unlink(missing_ok=True)

    def store_files(self) -> list[Path]:
        """Return the files by which agents find their hosts' stores."""
        return sorted(self.directory.glob(STORE_FILES))

    # -- the end

    def stop(self) -> list[str]:
        """Stop everything as a user would, and return descriptions of leftovers."""
        self._stopping.set()
        self._keeper.join()
        self._launcher.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._launcher.wait(END_SECONDS)
        left = self._left()
        for marked in self._marked():
            with suppress(psutil.NoSuchProcess):
                marked.kill()
        for proxy in self.proxies.values():
            proxy.close()
        self.stores.close()
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=False, capture_output=True)
        return left

    def _left(self) -> list[str]:
        within(END_SECONDS, lambda: not self._marked(), 0.1)
        left = [f"process {process.pid}: {' '.join(_cmdline(process))[:200]}" for process in self._marked()]
        for name in ("tmp", "run"):
            files = (path for path in (self.directory / name).rglob("*") if not path.is_dir())
            left += [f"file {path}" for path in files if path.name not in KEPT_FILES]
        new = set(SHARED_MEMORY.iterdir()) - self._shared_memory
        left += [f"shared memory {path}" for path in new if path.exists() and not path.name.startswith(FOREIGN)]
        return left

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _living(pids: list[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _kind(process: psutil.Process) -> str:
    """Return the component that a process of the launcher runs: the last word of its command."""
    return (_cmdline(process) or [""])[-1]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return sorted(process.children(), key=lambda child: child.pid)
    except psutil.Error:
        return []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def leave_no_descriptors(process: psutil.Process) -> tuple[int, int]:
    """Prevent a process from opening more descriptors, and return its previous limits."""
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds(), hard))
    return soft, hard


def send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
