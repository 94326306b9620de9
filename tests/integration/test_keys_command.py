"""`scaler keys`, as called by a user."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

import pytest

from scaler.cli import run_command
from scaler.config.commands import parse_object_storage_server, parse_scheduler
from scaler.net.server_access import ServerAccess
from scaler.protocol.messages import Server
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from scaler.security.documents import PeerEntry


class Shell:
    """Runs `scaler keys`, and collects all output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.printed = ""

    def keys(self, line: str, *, code: int = 0) -> str:
        """Return a command's stdout, or its stderr if it exits with a failure."""
        assert run_command("scaler", ["keys", *line.split()]) == code
        out, err = self._capsys.readouterr()
        self.printed += out + err
        return err if code else out

    def errors(self) -> str:
        """Return another command's stderr since the last call."""
        err = self._capsys.readouterr().err
        self.printed += err
        return err


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SCALER_CREDENTIALS", raising=False)
    return Shell(capsys)


def test_commands_printed_by_init_work_unchanged(shell: Shell, tmp_path: Path) -> None:
    printed = shell.keys(f"init {tmp_path}/other")
    commands = re.findall(r"^ +scaler (keys add .*?) +#", printed, re.MULTILINE)
    assert len(commands) == 2
    for name, command in zip(("alice", "box"), commands, strict=True):
        shell.keys(command.removeprefix("keys ").replace("NAME", name))
    listed = KeysDirectory.open(tmp_path / "other").listed()
    roles = [(each.name, each.role) for each in listed if isinstance(each, PeerEntry)]
    assert roles == [("alice", "client"), ("box", "manager")]
    assert f"--credentials {tmp_path}/other" in printed


def test_add_writes_one_private_file_and_prints_no_secret(shell: Shell, tmp_path: Path) -> None:
    shell.keys("init")
    before = os.umask(0)
    try:
        shell.keys("add box --role manager --expires 30d --output box.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "box.key").stat().st_mode) == 0o600
    box = load_credential(tmp_path / "box.key")
    assert (box.name, box.role) == ("box", "manager")
    assert box.expires is not None
    shell.keys("show box")
    shell.keys("list")
    shell.keys("revoke box")
    shell.keys("add box --role client --output box.key", code=2)
    keys = KeysDirectory.open(tmp_path / "config/scaler/keys")
    assert box.keys.public in shell.printed
    for pair in (box.keys, box.for_units().keys, keys.scheduler, keys.object_storage):
        assert pair.secret not in shell.printed


def test_taken_name_or_file_is_refused_without_leftovers(shell: Shell, tmp_path: Path) -> None:
    shell.keys("init")
    shell.keys("add alice --role client")
    kept = (tmp_path / "alice.credentials").read_bytes()
    assert "revoke that key first with `scaler keys revoke alice`" in shell.keys("add alice --role client", code=2)
    shell.keys("revoke alice")
    assert "alice.credentials already exists" in shell.keys("add alice --role client", code=2)
    assert "No such file" in shell.keys("add bob --role client --output none/bob", code=2)
    assert (tmp_path / "alice.credentials").read_bytes() == kept
    assert "revoked" in shell.keys("show bob")
    shell.keys("add bob --role client")


def test_table_has_all_keys_with_their_states(shell: Shell) -> None:
    shell.keys("init")
    assert shell.keys("list") == "no keys yet: scaler keys add NAME --role ROLE\n"
    shell.keys("add bob --role monitor --expires 2w")
    shell.keys("add alice --role client")
    shell.keys("revoke alice")
    head, alice, bob = (re.split(r"  +", line) for line in shell.keys("list").splitlines())
    assert head == ["name", "role", "share", "added", "expires", "state"]
    assert (*alice[:3], alice[4], alice[5][:10]) == ("alice", "client", "weight 1", "never", "revoked on")
    assert (bob[0], bob[1], bob[5]) == ("bob", "monitor", "admitted")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", bob[4])


@pytest.mark.parametrize("server", [Server.SCHEDULER, Server.OBJECT_STORAGE])
def test_publicly_reachable_server_names_the_two_required_commands(server: Server, shell: Shell) -> None:
    command = f"scaler_{server}{'_server' if server is Server.OBJECT_STORAGE else ''}"
    assert run_command(command, ["tcp://0.0.0.0:8516"]) == 2
    assert len(shell.errors().splitlines()) == 1
    make, start = re.findall("`(.*?)`", shell.printed)
    shell.keys(make.removeprefix("scaler keys "))
    name, *arguments = shlex.split(start)
    assert name == command
    config = (parse_scheduler if server is Server.SCHEDULER else parse_object_storage_server)(name, arguments, {})
    assert ServerAccess(config, server, [config.bind_address]).keys is not None
    assert run_command(command, ["tcp://0.0.0.0:8516"]) == 2
    assert re.findall("`(.*?)`", shell.errors()) == [start]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "give one of scaler keys init|add|share|revoke|list|show"),
        ("ad alice", "give one of scaler keys init"),
        ("add --role client", "the following arguments are required: NAME"),
        ("add alice", "the following arguments are required: --role"),
        ("add alice --role clint", "unknown role 'clint'; roles: client, worker, manager, monitor, admin"),
        (
            "add alice --role client --expires 30m",
            "--expires 30m: give hours, days, or weeks, such as 12h, 30d, or 52w",
        ),
        ("add alice --role client --expires -1d", "expected one argument"),
        ("add alice --role client --expires 99999999w", "give hours, days, or weeks"),
        ("add ../alice --role client", "'../alice' must be a name"),
        ("add local --role client", "local, anyone, scheduler, object_storage are reserved"),
        ("revoke bob", "there is no key named 'bob'; `scaler keys list` lists all keys"),
        ("show bob", "there is no key named 'bob'; `scaler keys list` lists all keys"),
        ("list --directory none", "none is not a keys directory: `scaler keys init none` creates one"),
        ("list all", "unexpected argument 'all'"),
        ("init", "exists and is not empty"),
        ("init new --cluster a/b", "the cluster's name 'a/b' must be a name"),
    ],
)
def test_invalid_call_says_what_to_change(line: str, text: str, shell: Shell) -> None:
    shell.keys("init")
    assert text in shell.keys(line, code=2)
