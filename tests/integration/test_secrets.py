"""A whole cluster with keys, at the most verbose log level: secret keys appear only in key files."""

from __future__ import annotations

import base64
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from zmq.utils import z85

from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER, ReservedPorts
from scaler.security.credential import Credential
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.integration.settings_rig import command

PROGRAM = """
import sys, traceback
from scaler import Client
from scaler.errors import ScalerError

address, alice, box, *others = sys.argv[1:]

def fails(value):
    raise ValueError(f"no {value}")

with Client(address, credentials=alice) as client:
    futures = [client.submit(len, b"x" * 1_000_000), client.submit(fails, 3)]
    print(client, repr(client), futures, futures[0].result(), vars(client))
    print(repr(futures[1].exception()), futures[1].exception().__cause__)
    print(client.explain(futures[1]), client.logs(futures[1]))
for credentials in (box, None, address, *others):
    try:
        Client(address, credentials=credentials, timeout_seconds=5)
    except ScalerError as error:
        traceback.print_exc()
        print(repr(error), error.__cause__, error.__context__)
"""

FAULTY = """
import sys
from scaler.cli import run_command
from scaler.scheduler.core.core import SchedulerCore

def impossible(*arguments):
    raise AssertionError("planted")

SchedulerCore._clear = impossible
run_command("scaler_scheduler", sys.argv[1:])
"""
CLEARS = """
import sys
from scaler import Client

client = Client(sys.argv[1], credentials=sys.argv[2], timeout_seconds=20)
client.submit(len, b"x" * 1_000_000)
client.clear()
sys.stdin.read()
"""


class Home:
    """Keys of a cluster and the credentials of its peers, with all secrets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys = KeysDirectory.create(path / "keys", "lab")
        self.secrets = [self.keys.scheduler.secret, self.keys.object_storage.secret]
        self.kept_in = [self.keys.path / "servers.toml"]
        self.printed = b""

    def credential(self, name: str, role: str, mode: int = 0o600) -> str:
        credential = self.keys.add(name, role)
        self.knows(credential)
        path = self.path / f"{name}.credentials"
        write_private(path, credential.to_text())
        path.chmod(mode)
        self.kept_in.append(path)
        return str(path)

    def knows(self, credential: Credential) -> None:
        self.secrets.append(credential.keys.secret)
        if credential.role == "manager":
            self.secrets.append(credential.for_units().keys.secret)

    def everything(self) -> bytes:
        """Return printed output, all files except key files, and all `ps` output about the running processes."""
        kept = {*self.kept_in, *(self.keys.path / "credentials").iterdir()}
        files = [path.read_bytes() for path in self.path.rglob("*") if path.is_file() and path not in kept]
        shown = []
        for process in psutil.Process().children(recursive=True):
            for name in ("cmdline", "environ"):
                try:
                    shown.append(Path(f"/proc/{process.pid}/{name}").read_bytes())
                except OSError:
                    continue  # has exited
        assert len(shown) > 10
        return b"\0".join([self.printed, *files, *shown])

    def found_in(self, text: bytes) -> list[str]:
        """Return the secrets that a text contains in any form."""
        return [secret for secret in self.secrets if any(form in text for form in forms_of(secret))]


def forms_of(secret: str) -> list[bytes]:
    raw = z85.decode(secret)
    forms = [secret.encode(), raw, raw.hex().encode(), base64.b64encode(raw), repr(raw)[2:-1].encode()]
    return [form[:20] for form in forms]  # even if shortened


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def cluster(home: Home) -> Iterator[tuple[str, str]]:
    """Run servers, the page, and local and TCP workers. Yields the scheduler's address and the page's."""
    ports = ReservedPorts(PORTS_OF_A_SCHEDULER + 1)
    near, far = ports.address(), ports.address().replace("127.0.0.1", "127.0.0.2")
    (home.path / "cluster.toml").write_text(f"""
[object_storage_server]
bind_address = "{ports.address(1).replace("127.0.0.1", "0.0.0.0")}"
logging_level = "DEBUG"
[scheduler]
bind_address = "{near.replace("127.0.0.1", "0.0.0.0")}"
advertised_object_storage_address = "{far.replace(far.rpartition(":")[2], ports.address(1).rpartition(":")[2])}"
credentials = "{home.keys.path}"
logging_level = "DEBUG"
[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "near"
max_task_concurrency = 1
logging_level = "DEBUG"
[webui]
web_port = {ports.address(PORTS_OF_A_SCHEDULER).rpartition(":")[2]}
logging_level = "DEBUG"
""")
    ports.release()
    box = home.credential("box", "manager")
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> None:
            stack.enter_context(command(name, *arguments, directory=home.path)).addresses()

        start("scaler", str(home.path / "cluster.toml"))
        start("scaler_cluster", far, "-n", "1", "-wmi", "far", "--credentials", box, "-ll", "DEBUG")
        for each in ("near", "far"):
            path = home.keys.path / "credentials" / f"manager-{each}.credentials"
            if path.exists():
                home.knows(Credential.from_text(path.read_text(), "it"))
        yield far, f"http://{ports.address(PORTS_OF_A_SCHEDULER).removeprefix('tcp://')}"


def run(home: Home, *arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=home.path, capture_output=True, timeout=40, check=False)
    home.printed += done.stdout + done.stderr


def test_no_secret_key_is_ever_shown(home: Home, cluster: tuple[str, str]) -> None:
    far, page = cluster
    alice, open_file = home.credential("alice", "client"), home.credential("open", "client", 0o644)
    broken = home.path / "broken.credentials"
    write_private(broken, Path(alice).read_text().replace('secret = "', 'secret = "x'))
    home.kept_in.append(broken)
    screen = home.credential("screen", "monitor")
    home.secrets.append("secretMARK" * 4)

    run(home, "-c", PROGRAM, far, alice, home.kept_in[1].as_posix(), open_file, str(broken), screen)
    assert b"ValueError('no 3')" in home.printed
    assert home.printed.count(b"Traceback") >= 4
    monitor = f"{far.rpartition(':')[0]}:{int(far.rpartition(':')[2]) + 2}"
    run(home, "-m", "scaler.cli", "scaler_top", monitor, "--json", "--credentials", screen)
    run(home, "-m", "scaler.cli", "scaler", "trace", str(home.path / "trace.json"), monitor, "--credentials", screen)
    for line in ("list", "show alice", "show box", "revoke alice", "list", "add alice --role client --output new"):
        run(home, "-m", "scaler.cli", "scaler", "keys", *line.split(), "--directory", str(home.keys.path))
    home.kept_in.append(home.path / "new")
    home.knows(Credential.from_text((home.path / "new").read_text(), "new"))
    for route in ("/metrics", "/api/status", "/api/workers", "/api/failures", "/api/events"):
        try:
            with urllib.request.urlopen(page + route, timeout=10) as answer:
                home.printed += answer.read()
        except urllib.error.HTTPError as error:
            home.printed += error.read()

    text = home.everything()
    assert b"scaler_workers" in text
    assert b"box" in text
    assert len(home.secrets) >= 10
    assert home.found_in(text) == []
    home.printed += home.secrets[3].encode()
    assert home.found_in(home.everything()) == [home.secrets[3]]


def test_no_secret_key_is_in_the_schedulers_black_box_or_audit_log(home: Home) -> None:
    ports = ReservedPorts(PORTS_OF_A_SCHEDULER)
    address = ports.address()
    flags = ["--credentials", str(home.keys.path), "--audit-path", str(home.path / "audit.jsonl"), "-ll", "DEBUG"]
    ports.release()
    alice = home.credential("alice", "client")
    everywhere, far = (address.replace("127.0.0.1", host) for host in ("0.0.0.0", "127.0.0.2"))
    python = [sys.executable, "-c"]
    with (home.path / "log").open("wb") as log, ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            command = [*python, *arguments]
            process = subprocess.Popen(command, cwd=home.path, stdin=subprocess.PIPE, stdout=log, stderr=log)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        scheduler = start(FAULTY, everywhere, *flags)
        start(CLEARS, far, alice)
        scheduler.wait(30)
    (box,) = home.path.glob("scaler-black-box-*")
    files = {path.name: path.read_bytes() for path in (box, home.path / "audit.jsonl", home.path / "log")}
    assert all(b"alice" in text for text in (files[box.name], files["audit.jsonl"]))
    assert b"planted" in files["log"]
    assert home.found_in(b"".join(files.values())) == []
    assert home.found_in(files[box.name] + home.secrets[-1].encode()) == [home.secrets[-1]]
