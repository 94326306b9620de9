"""How each command interprets its command line and a common file."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.config.clusters import LauncherConfig
from scaler.config.commands import (
    asking_sources,
    parse_launcher,
    parse_scheduler,
    parse_webui,
    parse_worker_adapter_native,
    parse_worker_manager,
    whom_to_ask,
)
from scaler.config.flags import flags_parser
from scaler.config.monitors import TopConfig
from scaler.errors import ConfigError, UsageError
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig

STORAGE = '[object_storage_server]\nbind_address = "tcp://*:1"\n'
SCHEDULER = '[scheduler]\nbind_address = "tcp://0.0.0.0:5"\n'
MANAGER = '[[worker_manager]]\ntype = "baremetal_native"\nworker_manager_id = "{}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def launch(file: Path, text: str, **environment: str) -> LauncherConfig:
    file.write_text(text)
    return parse_launcher("scaler", [str(file)], environment)


def worker_manager(*arguments: str, **environment: str) -> BaremetalNativeConfig:
    config = parse_worker_manager("scaler_worker_manager", arguments, environment)
    assert isinstance(config, BaremetalNativeConfig)
    return config


def test_components_in_one_file_find_each_other(file: Path) -> None:
    config = launch(file, STORAGE + SCHEDULER + MANAGER.format("a") + MANAGER.format("b") + "[cluster]\n")
    assert config.scheduler.object_storage_address == "tcp://127.0.0.1:1"
    assert [manager.scheduler_address for manager in config.worker_managers] == ["tcp://127.0.0.1:5"] * 3
    assert [manager.worker_manager_id for manager in config.worker_managers][:2] == ["a", "b"]


def test_scheduler_has_its_own_storage_if_the_file_has_none(file: Path) -> None:
    config = launch(file, SCHEDULER)
    assert config.object_storage_server is None
    assert config.scheduler.object_storage_address is None


def test_explicit_address_in_the_file_overrides_derived_ones(file: Path) -> None:
    text = STORAGE + SCHEDULER + 'object_storage_address = "tcp://h:2"\n'
    config = launch(file, text + MANAGER.format("a") + 'scheduler_address = "tcp://h:3"\n')
    assert config.scheduler.object_storage_address == "tcp://h:2"
    assert config.worker_managers[0].scheduler_address == "tcp://h:3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"section \[scheduler\] is missing"),
        (SCHEDULER + "[webui]\n[gui]\n", r"\[webui\] and \[gui\] are two names for one section"),
        (SCHEDULER.replace(":5", ":0"), "scheduler.bind_address: tcp://0.0.0.0:0: give a fixed port"),
        (SCHEDULER + 'monitor_address = "tcp://127.0.0.1:0"\n', "scheduler.monitor_address: .*: give a fixed port"),
        (SCHEDULER + '[webui]\ngui_address = "h"\n', "gui_address = 'h': must be host:port"),
        (SCHEDULER + '[webui]\ngui_address = "h:1"\nport = 2\n', "port and gui_address set the same value"),
        (SCHEDULER + MANAGER.format("a") * 2, "same worker_manager_id: 'a'"),
        (SCHEDULER + "[[worker_manager]]\n", "type is missing; types: aws_ec2, aws_hpc, aws_raw_ecs, baremetal_native"),
        (SCHEDULER + '[[worker_manager]]\ntype = "aws_lambda"\n', "no worker manager of type 'aws_lambda'"),
        (SCHEDULER + '[[worker_manager]]\ntype = "baremetal"\n', "did you mean 'baremetal_native'"),
        (SCHEDULER + MANAGER.format("a") + MANAGER.format("b") + "speed = 1\n", r"number 2: unknown key 'speed'"),
        (SCHEDULER + MANAGER.format("a") + "heartbeat_interval_seconds = 50\n", "less than two thirds"),
        (SCHEDULER + MANAGER.format("a") + 'preload = "m:f(x)"\n', "literals are numbers"),
    ],
)
def test_explains_why_a_file_cannot_be_started(file: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        launch(file, text)
    assert str(file) in str(caught.value) or "type" in str(caught.value)


def test_single_commands_ignore_sections_of_other_components(file: Path) -> None:
    file.write_text(SCHEDULER + '[webui]\nmonitor_address = "x"\n[top]\n')
    assert parse_scheduler("scaler_scheduler", ["-c", str(file)], {}).bind_address == "tcp://0.0.0.0:5"


def test_web_server_of_a_file_monitors_the_files_scheduler(file: Path) -> None:
    assert launch(file, SCHEDULER).webui is None
    for text in ("[webui]\n", "[gui]\n"):
        config = launch(file, SCHEDULER + text).webui
        assert config is not None
        assert (config.monitor_address, config.web_host, config.web_port) == ("tcp://127.0.0.1:7", "127.0.0.1", 50001)
    elsewhere = launch(file, SCHEDULER + '[webui]\nmonitor_address = "tcp://h:1"\n').webui
    assert elsewhere is not None
    assert elsewhere.monitor_address == "tcp://h:1"


def test_deprecated_web_server_key_sets_host_and_port(file: Path) -> None:
    file.write_text('[gui]\nmonitor_address = "tcp://h:1"\ngui_address = "[::1]:81"\n')
    config = parse_webui("scaler_gui", ["-c", str(file)], {})
    assert (config.web_host, config.web_port) == ("::1", 81)
    stronger = parse_webui("scaler_gui", ["-c", str(file), "--port", "82"], {})
    assert (stronger.web_host, stronger.web_port) == ("::1", 82)
    by_flag = parse_webui("scaler_ui", ["tcp://h:1", "--gui-address", "0.0.0.0:83"], {"SCALER_WEBUI_WEB_PORT": "84"})
    assert (by_flag.web_host, by_flag.web_port) == ("0.0.0.0", 83)


def test_monitor_finds_the_scheduler_of_a_file_and_its_own_flags(file: Path) -> None:
    def asked(*arguments: str) -> tuple[TopConfig, dict[str, object]]:
        parser = flags_parser("scaler_top", TopConfig, "")
        parser.add_argument("--once", action="store_true")
        sources, own = asking_sources(parser, arguments, {})
        return whom_to_ask(sources), own

    file.write_text(SCHEDULER + "[top]\ntimeout = 2\n")
    told, own = asked("-c", str(file))
    assert (told.monitor_address, told.timeout_seconds, own) == ("tcp://127.0.0.1:7", 2.0, {"once": False})
    file.write_text(SCHEDULER + '[top]\nmonitor_address = "tcp://h:1"\n')
    assert asked("-c", str(file))[0].monitor_address == "tcp://h:1"
    assert asked("tcp://h:1", "--once")[1] == {"once": True}
    with pytest.raises(UsageError, match="give the name of a cluster, or an address; this user runs none"):
        asked()


def test_worker_manager_uses_the_table_of_its_type_and_name(file: Path) -> None:
    address = 'scheduler_address = "ipc:///a"\n'
    first, second = MANAGER.format("a") + address, MANAGER.format("b") + address + "num_of_workers = 4\n"
    file.write_text(first)
    assert worker_manager("baremetal_native", "-c", str(file)).worker_manager_id == "a"
    assert worker_manager("baremetal_native", "-c", str(file), "-wmi", "z").worker_manager_id == "z"
    file.write_text(first + second)
    assert worker_manager("baremetal_native", "-c", str(file), "-wmi", "b").max_task_concurrency == 4
    by_environment = worker_manager("baremetal_native", "-c", str(file), SCALER_WORKER_MANAGER_WORKER_MANAGER_ID="b")
    assert by_environment.max_task_concurrency == 4
    with pytest.raises(
        ConfigError, match="has several worker managers of the type baremetal_native: 'a', 'b'; choose one"
    ):
        worker_manager("baremetal_native", "-c", str(file))


def test_worker_manager_requires_a_type_and_a_name() -> None:
    with pytest.raises(UsageError, match="give a type first"):
        worker_manager()
    with pytest.raises(UsageError, match="'aws_lambda' is installed; known: aws_ec2, aws_hpc, aws_raw_ecs, "):
        worker_manager("aws_lambda", "ipc:///a")
    with pytest.raises(ConfigError, match=r"worker_manager_id is missing.*\[\[worker_manager\]\]"):
        worker_manager("baremetal_native", "ipc:///a")


def test_deprecated_command_needs_neither_type_nor_name(file: Path) -> None:
    parsed = parse_worker_adapter_native("scaler_worker_adapter_native", ["ipc:///a", "-n", "3"], {})
    assert (parsed.type, parsed.worker_manager_id) == ("baremetal_native", "native_worker_adapter")
    assert parsed.max_task_concurrency == 3
    file.write_text('[native_worker_adapter]\nscheduler_address = "ipc:///a"\nnum_of_workers = 5\n')
    parsed = parse_worker_adapter_native("scaler_worker_adapter_native", ["-c", str(file)], {})
    assert parsed.max_task_concurrency == 5


def test_every_short_worker_flag_is_known() -> None:
    config = worker_manager(
        *("baremetal_native", "ipc:///a", "-wmi", "m", "-wsa", "ipc:///b", "-osa", "ipc:///c", "-n", "2"),
        *("-pwc", "linux,gpu=1", "-wtqs", "5", "-his", "1", "-tts", "3", "-ds", "9", "-hps"),
        *("--preload", "m:f(1)", "-e", "uvloop", "-ll", "ERROR", "-lp", "x.log", "-lcf", "y.ini"),
        *("--mode", "fixed", "--worker-type", "big", "--logging-format", "json"),
    )
    assert config == BaremetalNativeConfig(
        scheduler_address="ipc:///a",
        worker_manager_id="m",
        worker_scheduler_address="ipc:///b",
        object_storage_address="ipc:///c",
        max_task_concurrency=2,
        per_worker_capabilities={"linux": None, "gpu": 1.0},
        per_worker_task_queue_size=5,
        heartbeat_interval_seconds=1,
        task_timeout_seconds=3,
        death_timeout_seconds=9,
        preload="m:f(1)",
        event_loop="uvloop",
        logging_level="ERROR",
        logging_paths=("x.log",),
        logging_config_file="y.ini",
        logging_format="json",
        mode="fixed",
    )
