"""Sources of commands' settings, and messages about invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.cli import run_command
from tests.integration.settings_rig import command

MANAGER = ["scaler_worker_manager", "baremetal_native"]


def test_flags_override_the_environment_and_the_file(tmp_path: Path) -> None:
    address, *monitors = (f"ipc://{tmp_path}/{name}" for name in ("s", "file", "environment", "flag"))
    file = tmp_path / "scheduler.toml"
    file.write_text(f'[scheduler]\nbind_address = "{address}"\nmonitor_address = "{monitors[0]}"\n')
    flags, variables = ("-c", str(file), "-ma", monitors[2]), {"SCALER_SCHEDULER_MONITOR_ADDRESS": monitors[1]}
    with command("scaler_scheduler", *flags, directory=tmp_path, **variables) as running:
        addresses = running.addresses()
        assert (addresses["scheduler"], addresses["monitor"]) == (address, monitors[2])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["scaler_object_storage_server", "ipc:///a", "--max-object-bytes", "0"],
            "must be -1 (no limit), or from 1 to ",
        ),
        (["scaler_object_storage_server", "ipc:///nowhere/at/all"], "the directory does not exist"),
        (["scaler_scheduler", "tcp://127.0.0.1:0", "-pc", "allocate=most"], "allocate"),
        ([*MANAGER, "ipc:///a", "-wmi", "m", "-dts", "1"], "death_timeout_seconds (1) must be more than"),
        (["scaler_worker_adapter_symphony", "ipc:///a"], "service_name is missing"),
        (["scaler_worker_adapter_symphony", "ipc:///a", "--service-name", "app"], "soamapi, the Python library of IBM"),
        (["scaler_cluster", "ipc:///a", "--preload", "os"], "write module.path:function"),
        (["scaler", "local", "-n", "0"], "--num-of-workers = '0'"),
        (["scaler", "local", "--name", "a b"], "'a b' is not a valid cluster name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_command_line_exits_with_2_and_one_line_of_advice(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(words[0], words[1:]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1
