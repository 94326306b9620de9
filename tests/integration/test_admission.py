"""Admission: a real cluster with keys, and peers that connect as if from another host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.errors import ComponentError, RefusedError, ScalerError
from scaler.security.credential import Credential
from scaler.security.directory import KeysDirectory
from scaler.security.keys import new_key_pair
from scaler.security.private_files import write_private
from scaler.worker_manager.baremetal_native import COMMAND
from tests.integration.free_ports import free_addresses
from tests.integration.settings_rig import Command
from tests.waiting import within


class Cluster:
    """A cluster that listens on all addresses. `far` is an address without a local listener, which needs TCP."""

    def __init__(self, home: Path, audit_path: str = "") -> None:
        self.home = home
        self.keys = KeysDirectory.create(home / "keys", "test")
        self.far = free_addresses("127.0.0.2")[0]
        everywhere = self.far.replace("127.0.0.2", "0.0.0.0")
        self.combo = SchedulerClusterCombo(everywhere, 1, credentials=str(self.keys.path), audit_path=audit_path)

    def credential(self, name: str, role: str = "client") -> str:
        return self.file(self.keys.add(name, role))

    def file(self, credential: Credential) -> str:
        path = self.home / f"{credential.name}.credentials"
        write_private(path, credential.to_text(), replace=True)
        return str(path)

    def connect(self, credentials: str | None, *, insecure_no_auth: bool = False) -> Client:
        return Client(self.far, credentials=credentials, timeout_seconds=20, insecure_no_auth=insecure_no_auth)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("admission"))
    try:
        yield made
    finally:
        made.combo.shutdown()


@pytest.fixture(scope="module")
def open_cluster() -> Iterator[str]:
    """The address, as `Cluster.far`, of a cluster without authentication."""
    far = free_addresses("127.0.0.2")[0]
    with SchedulerClusterCombo(far.replace("127.0.0.2", "0.0.0.0"), 1, insecure_no_auth=True):
        yield far


def refusal_of(connect: Callable[[], Client]) -> str:
    with pytest.raises(RefusedError) as raised:
        connect()
    return str(raised.value)


def test_client_with_a_credential_uses_an_encrypted_connection(cluster: Cluster) -> None:
    with cluster.connect(cluster.credential("worker-friend")) as client:
        assert client.map(abs, range(-50, 50)) == [abs(number) for number in range(-50, 50)]
        assert client.submit(len, b"x" * 2_000_000).result(30) == 2_000_000


def test_client_without_a_credential_learns_what_it_needs(cluster: Cluster) -> None:
    text = refusal_of(lambda: cluster.connect(None))
    assert all(each in text for each in NEEDS_A_KEY)


def test_unknown_key_is_refused_as_unknown(cluster: Cluster) -> None:
    credential = replace(cluster.keys.add("forgotten", "client"), **new_key_pair()._asdict())
    assert "does not know key forgotten" in refusal_of(lambda: cluster.connect(cluster.file(credential)))


def test_credential_of_another_cluster_is_refused_as_such(cluster: Cluster, tmp_path: Path) -> None:
    other = KeysDirectory.create(tmp_path / "other", "other").add("eve", "client")
    assert "another cluster" in refusal_of(lambda: cluster.connect(cluster.file(other)))


MANAGER = ("scaler_cluster",)
MONITORS = (("scaler_top", "--once"), ("scaler_ui", "--web-port", "0"))


NEEDS_A_KEY = ("the server requires a key, and this process has none", "scaler keys add", "--credentials")
NEEDS_KEYS = ("the server requires keys: remove insecure_no_auth here", "scaler keys add", "--credentials")
NEEDS_NONE = ("the server runs with insecure_no_auth", "scaler keys init", "--insecure-no-auth")


@pytest.mark.parametrize(
    ("words", "proof"),
    [
        *((words, "another role's") for words in (MANAGER, *MONITORS)),
        (MANAGER, "nothing"),
        (MONITORS[0], "--insecure-no-auth"),
    ],
)
def test_every_command_refused_by_a_server_with_keys_explains_the_remedy(
    words: tuple[str, ...], proof: str, cluster: Cluster, tmp_path: Path
) -> None:
    path = cluster.home / "stranger.credentials"
    flags: Sequence[str] = ()
    texts: Sequence[str] = NEEDS_A_KEY
    match proof:
        case "--insecure-no-auth":
            flags, texts = (proof,), NEEDS_KEYS
        case "another role's":
            flags = ("--credentials", str(path) if path.exists() else cluster.credential("stranger", "worker"))
            texts = (f"the key stranger is for the role worker, not {_role(words)}",)
    assert_refused(words, cluster.far, flags, texts, tmp_path)


@pytest.mark.parametrize(("has_keys", "texts"), [(True, NEEDS_A_KEY), (False, NEEDS_NONE)])
def test_refused_worker_reports_reason_and_remedy(
    has_keys: bool, texts: tuple[str, ...], cluster: Cluster, open_cluster: str
) -> None:
    config = WorkerConfig(
        scheduler_address=cluster.far if has_keys else open_cluster, worker_manager_id="m", unit_id="u"
    )
    environment = {**os.environ, WORKER_CONFIG_VARIABLE: config.to_json()}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode != 0
    assert all(text in done.stdout + done.stderr for text in texts)


def assert_refused(
    words: Sequence[str], address: str, flags: Sequence[str], texts: Sequence[str], directory: Path
) -> None:
    """Start a command that must print these texts."""
    if _role(words) == "monitor":
        host, port = address.rsplit(":", 1)
        address = f"{host}:{int(port) + 2}"
    running = Command(words[0], (*words[1:], address, *flags), {}, directory)
    try:
        within(20, lambda: all(text in running.output() + running.errors() for text in texts))
        said = running.output() + running.errors()
        assert [text for text in texts if text not in said] == [], said
    finally:
        running.close()


def _role(words: Sequence[str]) -> str:
    return "manager" if words == MANAGER else "monitor"


def test_revoking_a_key_ends_its_sessions_and_keeps_it_out(cluster: Cluster) -> None:
    path = cluster.credential("leaver")
    with cluster.connect(path) as client:
        assert client.submit(abs, -3).result(30) == 3
        cluster.keys.revoke("leaver")

        began = time.monotonic()
        with pytest.raises(ScalerError, match="the key leaver was revoked"):
            all(client.submit(abs, -3).result(30) for _ in iter(time.monotonic, began + 10))
        assert time.monotonic() < began + 2
    assert "key leaver, which was revoked" in refusal_of(lambda: cluster.connect(path))


def test_expiring_key_ends_its_sessions_and_is_refused_as_expired(cluster: Cluster) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=3)
    path = cluster.file(cluster.keys.add("guest", "client", expires))
    with cluster.connect(path) as client:
        with pytest.raises(ScalerError, match="the key guest expired on"):
            all(client.submit(abs, -3).result(30) for _ in iter(time.monotonic, time.monotonic() + 20))
        assert datetime.now(UTC) < expires + timedelta(seconds=2)
    began = time.monotonic()
    assert "key guest, which expired on" in refusal_of(lambda: cluster.connect(path))
    assert time.monotonic() < began + 2


def test_cluster_reachable_by_others_requires_keys() -> None:
    with pytest.raises(ComponentError, match="scaler keys init"):
        SchedulerClusterCombo(free_addresses("0.0.0.0")[0], 1)


def test_cluster_without_authentication_requires_clients_to_opt_in(cluster: Cluster, open_cluster: str) -> None:
    with Client(open_cluster, insecure_no_auth=True, timeout_seconds=20) as client:
        assert client.submit(abs, -4).result(30) == 4
    for credentials in (None, cluster.credential("at-home")):
        text = refusal_of(lambda: Client(open_cluster, credentials=credentials, timeout_seconds=20))  # noqa: B023
        assert all(each in text for each in NEEDS_NONE)


OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user: NOT TESTED")


def as_another_user(program: str, *arguments: str) -> str:
    """Run a program as an unprivileged user; return its output.

    That user may not be able to read Python itself, so everything is imported before the process becomes that user's.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", BECOME_ANOTHER_USER + program, *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        env={name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"},
        check=False,
    )
    return done.stdout + done.stderr


BECOME_ANOTHER_USER = f"""
import os, socket, sys
from scaler import Client
from scaler.errors import ScalerError
from scaler.net.local import local_name
try:
    Client("tcp://127.0.0.1:1", timeout_seconds=0.1)
except ScalerError:
    pass
os.setgroups([])
os.setgid({OTHER_USER})
os.setuid({OTHER_USER})
"""
CONNECT = """
try:
    Client(sys.argv[1], timeout_seconds=5)
    print("IS IN")
except Exception as error:
    print(type(error).__name__, error)
"""


@needs_root
def test_other_local_user_is_refused_over_tcp_and_at_the_local_listener() -> None:
    program = """
name = local_name(sys.argv[1]).replace("-65534-", "-0-")
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(name)
    connection.settimeout(20)
    print("cut" if connection.recv(1) == b"" else "IS IN")
"""
    with SchedulerClusterCombo(n_workers=1) as combo:
        assert "this process has none" in as_another_user(CONNECT, combo.get_address())
        assert as_another_user(program, combo.get_address()) == "cut\n"


def test_processes_of_a_user_share_run_keys_without_a_local_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with SchedulerClusterCombo(n_workers=1) as combo:
        monkeypatch.setattr("scaler.net.connector.connect_local", lambda *_: None)
        with Client(combo.get_address()) as client:
            assert client.submit(len, b"x" * 1_000_000).result(30) == 1_000_000
