"""Hosts in the users' syntax, the command that connects to them, and the meaning of its output."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.errors import ScalerError, UsageError
from scaler.worker_manager.ssh import Host, SshConfig, parse_host
from scaler.worker_manager.ssh.command import Wheel, forwarded_port, problem_text, ssh_command, watch_script


def config(**values: Any) -> SshConfig:
    given = {"scheduler_address": "tcp://127.0.0.1:1", "worker_manager_id": "far", "hosts": ["a"]}
    return model_of(SshConfig, given | values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", Host("a")),
        ("ann@a.example:2222", Host("ann@a.example", 2222)),
        ("a-b  slots=4", Host("a-b", 0, 4)),
        ("ann@[2001:db8::1]:22 slots=1", Host("ann@2001:db8::1", 22, 1)),
        ("10.0.0.7", Host("10.0.0.7")),
    ],
)
def test_hosts_use_the_syntax_of_ssh(text: str, expected: Host) -> None:
    assert parse_host(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=x",
        "-l@a",
        "a b",
        "a:0",
        "a:65536",
        "a:x",
        "a slots=0",
        "a slots=9999999",
        "a slots=-1",
        "a@",
        "",
    ],
)
def test_rejects_invalid_hosts_and_ssh_options(text: str) -> None:
    with pytest.raises(UsageError, match=r"^host '"):
        parse_host(text)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"hosts": []}, "number of items"),
        ({"hosts": ["a", "-b"]}, "host '-b'"),
        ({"scheduler_address": "ipc:///tmp/s"}, "other machines cannot reach"),
        ({"host_name": "one"}, "remove host_name, or set tunnel = false"),
    ],
)
def test_unworkable_settings_are_rejected_with_a_remedy(values: dict[str, Any], expected: str) -> None:
    with pytest.raises((ScalerError, ValueError), match=expected):
        config(**values)


def test_loopback_scheduler_is_tunnelled_unless_configured_otherwise() -> None:
    assert config().tunnel
    assert not config(tunnel=False).tunnel
    assert not config(scheduler_address="tcp://10.0.0.1:1").tunnel
    assert config(scheduler_address="tcp://10.0.0.1:1", tunnel=True).tunnel
    assert not config(worker_scheduler_address="tcp://10.0.0.1:1").tunnel


def test_user_options_come_first_and_the_host_is_never_an_option() -> None:
    command = ssh_command(Host("ann@a", 2222), ["-i", "key"], (), "true; echo 'x'")
    assert command.index("-i") < command.index("BatchMode=yes")
    assert command[-7:-1] == ["-S", "none", "-p", "2222", "--", "ann@a"]
    assert shlex.split(command[-1]) == ["exec", "sh", "-c", "true; echo 'x'"]


def test_connection_with_forwards_ignores_the_users_multiplexing() -> None:
    forwards = ["127.0.0.1:8516", "[::1]:8517"]
    command = ssh_command(Host("a"), ["-o", "ControlMaster=auto", "-S", "shared"], forwards, "true")
    assert command.index("ControlMaster=no") < command.index("ControlMaster=auto")
    assert command[-9:-1] == [
        *("-S", "none"),  # the last of two -S counts
        *("-R", "0:127.0.0.1:8516", "-R", "0:[::1]:8517", "--", "a"),
    ]
    assert "ClearAllForwardings=yes" not in command
    assert "ClearAllForwardings=yes" in ssh_command(Host("a"), [], (), "true")


def test_ports_of_forwards_are_read_from_the_output_of_ssh() -> None:
    forwards = ["127.0.0.1:8516", "[::1]:8517"]
    said = "Allocated port 40001 for remote forward to "
    assert forwarded_port(f"{said}127.0.0.1:8516", forwards) == ("127.0.0.1:8516", 40001)
    assert forwarded_port(f"{said}::1:8517\r", forwards) == ("[::1]:8517", 40001)
    assert forwarded_port(f"{said}127.0.0.1:22", forwards) is None
    assert forwarded_port("motd", forwards) is None


@pytest.mark.parametrize("environment", ["", "~/my venv", Wheel("scaler-1.whl", b"12", "abc", "[uvloop]")])
def test_script_is_one_line_that_every_login_shell_passes_unchanged(environment: str | Wheel) -> None:
    script = watch_script("m", 5.0, "3.11", environment)
    assert "\n" not in script
    assert "!" not in script
    if environment == "~/my venv":
        assert "P=\"$HOME\"'/my venv'" in script


def test_problem_is_one_clean_line_with_a_remedy() -> None:
    lines = ["Warning: Permanently added 'a'", "@@@@@@@@", "", "no route", "Host key verification failed."]
    assert problem_text(Host("ann@a", 22), lines, "exit code 255") == (
        "ann@a:22: no route; Host key verification failed.: log in once with `ssh ann@a` and accept its key, "
        "or fix ~/.ssh/known_hosts"
    )
    assert problem_text(Host("a"), [], "exit code 255") == "a: exit code 255"
    assert problem_text(Host("a"), ["remote port forwarding failed for listen port 0"], "exit code 255") == (
        "a: remote port forwarding failed for listen port 0: allow AllowTcpForwarding in its sshd_config, "
        "or set tunnel = false"
    )
    # The error concerns a file, not the login.
    line = "sh: 1: /p/bin/python: Permission denied"
    assert problem_text(Host("a"), [line], "exit code 126") == f"a: {line}"
