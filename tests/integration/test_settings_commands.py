"""Where commands take their settings from, and what they say about wrong ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.cli import run_command
from scaler.config.commands import parse_scheduler
from tests.integration.settings_rig import command, io_threads
from tests.waiting import within

MANAGER = ["scaler_worker_manager", "baremetal_native"]
SCHEDULER = '[scheduler]\nbind_address = "ipc:///a"\n'
SERVERS = ["scaler_object_storage_server", "scaler_scheduler"]


@pytest.mark.parametrize("sources", [(), ("file",), ("file", "environment"), ("file", "environment", "flag")])
def test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_default(
    sources: tuple[str, ...], tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/s"
    monitor = f"ipc://{tmp_path}/elsewhere"
    file = tmp_path / "scheduler.toml"
    lines = ["[scheduler]", f'bind_address = "{address}"', f'monitor_address = "{monitor}"']
    file.write_text("\n".join(lines + ["io_threads = 2"] * ("file" in sources)))
    environment = {"SCALER_SCHEDULER_IO_THREADS": "3"} if "environment" in sources else {}
    flags = ["--io-threads", "4"] if "flag" in sources else []
    with command("scaler_scheduler", "-c", str(file), *flags, directory=tmp_path, **environment) as running:
        addresses = running.addresses()
        assert (addresses["scheduler"], addresses["monitor"]) == (address, monitor)
        # Threads get their names a moment after they have started.
        assert within(5, lambda: io_threads(running.pid) == 1 + len(sources))


def test_servers_know_the_older_names_of_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "older.toml"
    storage, scheduler = f"ipc://{tmp_path}/storage", f"ipc://{tmp_path}/scheduler"
    file.write_text(
        f'[object_storage_server]\nobject_storage_address = "{storage}"\n'
        f'[scheduler]\nscheduler_address = "{scheduler}"\nallocate_policy = "even"\n'
        f'object_storage_address = "{storage}"\n'
    )
    with (
        command("scaler_scheduler", "-c", str(file), directory=tmp_path) as first,
        command("scaler_object_storage_server", "-c", str(file), directory=tmp_path) as second,
    ):
        assert first.addresses()["scheduler"] == scheduler
        assert list(second.addresses().values()) == [storage]


def test_the_address_may_stand_behind_the_paths_of_a_log(tmp_path: Path) -> None:
    arguments = ["-lp", "/dev/stdout", str(tmp_path / "log"), f"ipc://{tmp_path}/s", "-p", "False"]
    config = parse_scheduler("scaler_scheduler", arguments, {})
    assert config.bind_address == f"ipc://{tmp_path}/s"
    assert config.logging_paths == ("/dev/stdout", str(tmp_path / "log"))
    assert not config.protected


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_writes_its_log_where_it_was_told_in_the_format_and_from_the_level_on(
    name: str, tmp_path: Path
) -> None:
    files = {level: tmp_path / level for level in ("DEBUG", "CRITICAL")}
    for level, file in files.items():
        flags = ["-ll", level, "--logging-format", "json", "-lp", str(file), "/dev/stdout"]
        with command(name, f"ipc://{tmp_path}/{level}.s", *flags, directory=tmp_path) as running:
            running.addresses()
            running.stop()
            assert running.output() == file.read_text()
    assert files["CRITICAL"].read_text() == ""
    entries = [json.loads(line) for line in files["DEBUG"].read_text().splitlines()]
    assert any(entry["message"].startswith("ready") for entry in entries)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_writes_its_log_as_the_file_of_a_logging_configuration_says(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = tmp_path / "logging.ini"
    config.write_text(
        "[loggers]\nkeys=root\n[handlers]\nkeys=file\n[formatters]\nkeys=mine\n"
        "[logger_root]\nlevel=DEBUG\nhandlers=file\n"
        f"[handler_file]\nclass=FileHandler\nargs=({str(log)!r},)\nformatter=mine\n"
        "[formatter_mine]\nformat=mine %(name)s %(message)s\n"
    )
    with command(name, f"ipc://{tmp_path}/s", "-lcf", str(config), directory=tmp_path) as running:
        running.addresses()
    assert "mine scaler.component ready" in log.read_text()


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Puts the log of this process back to where it went before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["scaler_object_storage_server"], "bind_address is missing: give it as ADDRESS or --bind-address"),
        (["scaler_object_storage_server", "localhost:1"], "write tcp://host:port or ipc://path"),
        (
            ["scaler_object_storage_server", "ipc:///a", "--max-object-bytes", "0"],
            "must be -1 (no limit), or from 1 to ",
        ),
        (["scaler_object_storage_server", "ipc:///nowhere/at/all"], "its directory does not exist"),
        (["scaler_object_storage_server", "ipc:///a", "-lp", "/dev/null/log"], "logging_paths: cannot open"),
        (["scaler_scheduler", "ipc:///a", "--protect"], "unknown flag --protect"),
        (["scaler_scheduler", "ipc:///a", "-ct", "0"], "--client-timeout-seconds = '0': must be greater than 0"),
        (["scaler_scheduler", "ipc:///a", "-el", "trio"], "must be 'builtin' or 'uvloop'"),
        (["scaler_scheduler", "ipc:///a", "-et", "simpel"], "did you mean"),
        (["scaler_scheduler", "tcp://127.0.0.1:0", "-pc", "allocate=most"], "allocate"),
        (["scaler_scheduler", "ipc:///a", "-lcf", "/nowhere.ini"], "logging_config_file: cannot read"),
        (["scaler_scheduler", "tcp://127.0.0.1:65534"], "set monitor_address"),
        (["scaler_worker_manager"], "give the type first"),
        (["scaler_worker_manager", "baremetal"], "did you mean 'baremetal_native'"),
        ([*MANAGER, "ipc:///a"], "worker_manager_id is missing"),
        ([*MANAGER, "ipc:///a", "-wmi", "m", "--mode", "static"], "must be 'dynamic' or 'fixed'"),
        ([*MANAGER, "ipc:///a", "-wmi", "m", "-pwc", "gpu=many"], "'many' is not a number"),
        ([*MANAGER, "ipc:///a", "-wmi", "m", "-dts", "1"], "death_timeout_seconds (1) must be more than"),
        (["scaler_worker_adapter_native"], "scheduler_address is missing"),
        (["scaler_worker_adapter_symphony", "ipc:///a"], "service_name is missing"),
        (["scaler_worker_adapter_symphony", "ipc:///a", "--service-name", "app"], "soamapi, the Python library of IBM"),
        (["scaler_cluster", "ipc:///a", "-n", "0"], "--num-of-workers = '0': must be greater than or equal to 1"),
        (
            ["scaler_cluster", "ipc:///a", "--num-of-workers", "1", "--max-task-concurrency", "2"],
            "set the same thing; give one of them",
        ),
        (["scaler_cluster", "ipc:///a", "--preload", "os"], "write module.path:function"),
        (["scaler", "a.toml", "-c", "b.toml"], "give one configuration file"),
        (["scaler", "local", "-n", "0"], "--num-of-workers = '0'"),
        (["scaler", "local", "--name", "a b"], "'a b' is no name for a cluster"),
        (["scaler", "/nowhere.toml"], "cannot read configuration file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_ends_with_code_2_and_one_line_that_says_what_to_change(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], own_logging: None
) -> None:
    assert run_command(words[0], words[1:]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "file", "text"),
    [
        (["scaler"], "[scheduler\n", "is not a TOML file"),
        (["scaler"], "[schedule]\n", "unknown section [schedule]; did you mean 'scheduler'"),
        (["scaler"], "[cluster]\n", "section [scheduler] is missing"),
        (["scaler_object_storage_server"], "[object_storage_server]\nmemory_limit = 1\n", "mean 'memory_limit_bytes'"),
        (["scaler_scheduler"], f'{SCHEDULER}protected = "no"\n', "protected = 'no': must be a valid boolean"),
        (["scaler_scheduler"], f'{SCHEDULER}allocate_policy = "odd"\n', "must be one of even"),
        (MANAGER, '[[worker_manager]]\ntype = "baremetal_native"\nio_threads = 1.5\n', "io_threads = 1.5"),
        (["scaler_cluster"], '[cluster]\nscheduler_address = "ipc:///a"\nmode = "fixed"\n', "unknown key 'mode'"),
        (["scaler_worker_adapter_native"], "[native_worker_adapter]\nnum_workers = 2\n", "mean 'num_of_workers'"),
        (["scaler_worker_adapter_symphony"], "[symphony_worker_adapter]\nservice = 'a'\n", "mean 'service_name'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_file_ends_every_command_with_code_2_and_one_line_that_names_file_and_key(
    words: list[str], file: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(file)
    assert run_command(words[0], [*words[1:], "-c", str(path)]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert str(path) in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (["scaler_object_storage_server", "ipc:///a"], "SCALER_OBJECT_STORAGE_SERVER_LOGGING_LEVEL"),
        (["scaler_scheduler", "ipc:///a"], "SCALER_SCHEDULER_LOGGING_LEVEL"),
        ([*MANAGER, "ipc:///a", "-wmi", "m"], "SCALER_WORKER_MANAGER_LOGGING_LEVEL"),
        (["scaler_cluster", "ipc:///a"], "SCALER_CLUSTER_LOGGING_LEVEL"),
    ],
)
def test_a_wrong_variable_is_named(
    words: list[str], variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "LOUD")
    assert run_command(words[0], words[1:]) == 2
    assert f"environment: {variable} = 'LOUD': must be 'DEBUG', 'INFO'" in capsys.readouterr().err
