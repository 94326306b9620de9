"""One rule for every path: `~` is the home directory, and relative paths start at the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaler import logs
from scaler.config.load import read_file
from scaler.config.monitors import TopConfig, WebUiConfig
from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig, scheduler_model
from scaler.config.setting import LoggingConfig, SettingsModel, describe
from scaler.config.worker_managers import ClusterConfig, settings_model
from scaler.errors import ConfigError, UsageError
from scaler.extensions.durability.steps import journal_directory
from scaler.extensions.failures.bundle import read_bundle
from scaler.monitor.web.page import load_token, tls_of
from scaler.net.access import Access
from scaler.net.server_access import ServerAccess
from scaler.object_storage.server import SpillSpace, spill_space
from scaler.paths import local_path
from scaler.plugins import WORKER_MANAGERS
from scaler.protocol.messages import Role, Server
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory, default_directory
from scaler.worker_manager.kubernetes.backend import pod_template
from scaler.worker_manager.orb_aws_ec2.backend import OrbBroker
from scaler.worker_manager.ssh import all_hosts
from scaler.worker_manager.symphony.executor import read_password

ADDRESS = "tcp://127.0.0.1:0"
OF_OTHER_MACHINES = {"ssh_python", "slurm_python", "slurm_log_directory", "orb_python", "ec2_python"}
"""Shells of other machines read them."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home directory. Nothing is written to the working directory."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


def keys(home: Path) -> Path:
    return KeysDirectory.create(home / "keys", "c").path


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def read_credentials(home: Path) -> None:
    directory = keys(home)
    assert Access.of("~/keys", False, Role.MANAGER, "m").credential
    config = SchedulerConfig(bind_address=ADDRESS, credentials="~/keys")
    assert ServerAccess(config, Server.SCHEDULER, []).keys
    private(home / "one", KeysDirectory.open(directory).add("alice", "client").to_text())
    assert load_credential("~/one").name == "alice"
    assert default_directory({"SCALER_CREDENTIALS": "~/keys"}) == directory


def read_logging_paths(home: Path) -> None:
    logs.set_up("x", LoggingConfig(logging_paths=("~/logs/x",)))
    assert (home / "logs/x").exists()


def read_logging_config_file(home: Path) -> None:
    (home / "log.json").write_text('{"version": 1}')
    logs.set_up("x", LoggingConfig(logging_config_file="~/log.json"))


def read_token(home: Path) -> None:
    private(home / "token", "t" * 30)
    assert load_token("~/token") == ("t" * 30, home / "token")


def read_certificate(home: Path) -> None:
    private(home / "key", "none")
    config = WebUiConfig(
        monitor_address="tcp://127.0.0.1:1", web_certificate_file="~/certificate", web_key_file="~/key"
    )
    with pytest.raises(ConfigError, match=str(home / "certificate")):
        tls_of(config)


def read_spill_directory(home: Path) -> None:
    config = ObjectStorageServerConfig(bind_address=ADDRESS, spill_directory="~/spill")
    assert SpillSpace.of(config) == SpillSpace(str(home / "spill"))


def read_store_spill_directory(home: Path) -> None:
    space = spill_space("~")
    assert space is not None
    assert space.directory == str(home)


def read_state_directory(home: Path) -> None:
    config = SchedulerConfig(bind_address=ADDRESS, state_directory="~/state")
    assert journal_directory(config.state_directory) == home / "state/scheduler"


def read_pod_template(home: Path) -> None:
    (home / "pod.yaml").write_text("kind: Pod")
    assert pod_template("~/pod.yaml") == {"kind": "Pod"}


def read_orb_config(home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("orb", "orb.config", "orb.config.platform_dirs"):  # importing ORB takes a second
            patch.setitem(sys.modules, name, SimpleNamespace(__spec__=name, get_config_location=None))
        with pytest.raises(UsageError, match=f"there is no {home}/orb.json"):
            OrbBroker("~/orb.json")


def read_symphony_password(home: Path) -> None:
    private(home / "password", "secret\n")
    assert read_password("~/password") == "secret"


READERS: dict[str, Callable[[Path], None]] = {
    "credentials": read_credentials,
    "logging_paths": read_logging_paths,
    "logging_config_file": read_logging_config_file,
    "web_token_file": read_token,
    "web_certificate_file": read_certificate,
    "web_key_file": read_certificate,
    "spill_directory": read_spill_directory,
    "store_spill_directory": read_store_spill_directory,
    "state_directory": read_state_directory,
    "k8s_pod_template": read_pod_template,
    "orb_config": read_orb_config,
    "symphony_password_file": read_symphony_password,
}
TRIED_ELSEWHERE = {"audit_path", "k8s_kubeconfig"}
"""The former by test_audit.py, the latter by the tests of the library that reads it."""


@pytest.mark.parametrize("key", READERS)
def test_any_path_setting_may_use_the_home_directory(home: Path, key: str) -> None:
    READERS[key](home)
    assert not list(Path.cwd().iterdir())


def test_every_path_setting_is_tried() -> None:
    models: list[type[SettingsModel]] = [*map(settings_model, WORKER_MANAGERS.built_in), ClusterConfig, TopConfig]
    models += [scheduler_model(), ObjectStorageServerConfig, WebUiConfig]
    items = [item for model in models for item in describe(model).values()]
    paths = {item.name for item in items if item.setting.metavar in ("PATH", "FILE", "DIRECTORY")}
    assert paths == READERS.keys() | TRIED_ELSEWHERE | OF_OTHER_MACHINES


def test_files_named_in_settings_may_be_in_the_home_directory(home: Path) -> None:
    (home / "packages").write_text("numpy>=2\n")
    (home / "hosts").write_text("one\n")
    cluster = ClusterConfig(scheduler_address="tcp://127.0.0.1:1", requirements=("@~/packages",))
    assert cluster.all_requirements() == ("numpy>=2",)
    assert [host.destination for host in all_hosts(["@~/hosts"])] == ["one"]
    (home / "scaler.toml").write_text("")
    assert not read_file("~/scaler.toml").tables
    (home / "task.bundle").write_text("")
    with pytest.raises(UsageError, match="was not written by"):
        read_bundle("~/task.bundle")


def test_unknown_home_directory_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"'~nobody-here/x': .* \(there is no such user\): write the full path"):
        local_path("~nobody-here/x")
    if os.geteuid():
        pytest.skip("only root can take an id without an entry")
    program = "import os; from scaler.paths import local_path; os.setuid(54321); local_path('~/x')"
    environment = {name: text for name, text in os.environ.items() if name != "HOME"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "'~/x': the home directory ~ is unknown (HOME is not set, and this user has no passwd entry)" in done.stderr
