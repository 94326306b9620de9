"""Precedence of sources, and errors for invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.config.commands import parse_scheduler
from scaler.config.servers import SchedulerConfig
from scaler.errors import ConfigError, UsageError
from scaler.policy.load import load_policy


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    return WriteFile(tmp_path / "config.toml")


class WriteFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, text: str) -> str:
        self.path.write_text(text)
        return str(self.path)


def scheduler(*arguments: str, **environment: str) -> SchedulerConfig:
    return parse_scheduler("scaler_scheduler", arguments, environment)


def test_flag_overrides_environment_overrides_file_overrides_default(write: WriteFile) -> None:
    file = write('[scheduler]\nbind_address = "ipc:///a"\nclient_timeout_seconds = 2\nworker_timeout_seconds = 7')
    assert scheduler("tcp://127.0.0.1:1").client_timeout_seconds == 60
    assert scheduler("-c", file).client_timeout_seconds == 2
    assert scheduler("-c", file, SCALER_SCHEDULER_CLIENT_TIMEOUT_SECONDS="3").client_timeout_seconds == 3
    both = scheduler("-c", file, "-ct", "4", SCALER_SCHEDULER_CLIENT_TIMEOUT_SECONDS="3")
    assert (both.client_timeout_seconds, both.worker_timeout_seconds) == (4, 7)


def test_alias_is_the_same_setting_in_every_source(write: WriteFile) -> None:
    file = write('[scheduler]\nscheduler_address = "tcp://127.0.0.1:1"')
    assert scheduler("-c", file).bind_address == "tcp://127.0.0.1:1"
    assert scheduler("-c", file, "--bind-address", "tcp://127.0.0.1:2").bind_address == "tcp://127.0.0.1:2"
    assert scheduler(SCALER_SCHEDULER_SCHEDULER_ADDRESS="tcp://127.0.0.1:3").bind_address == "tcp://127.0.0.1:3"
    assert scheduler("--scheduler-address", "tcp://127.0.0.1:4").bind_address == "tcp://127.0.0.1:4"


@pytest.mark.parametrize("policy", ["simple", "target_v1"])
def test_policy_needs_no_content(policy: str) -> None:
    config = scheduler("tcp://127.0.0.1:1", "-et", policy)
    assert load_policy(config.policy_engine_type, config.policy_content)


def test_allocate_policy_even_means_even_load(write: WriteFile) -> None:
    file = write('[scheduler]\nscheduler_address = "tcp://127.0.0.1:1"\nallocate_policy = "even"')
    assert scheduler("-c", file).policy_content == "allocate=even_load; scaling=vanilla"
    with pytest.raises(ConfigError, match=r"allocate-policy = 'odd': must be one of even"):
        scheduler("tcp://127.0.0.1:1", "--allocate-policy", "odd")


def test_rejects_two_names_of_one_setting_in_one_source(write: WriteFile) -> None:
    file = write('[scheduler]\nbind_address = "ipc:///a"\nscheduler_address = "ipc:///a"')
    with pytest.raises(ConfigError, match="scheduler_address and bind_address set the same value"):
        scheduler("-c", file)


def test_retired_settings_are_accepted_from_every_source_with_one_warning_each(
    write: WriteFile, caplog: pytest.LogCaptureFixture
) -> None:
    file = write('[scheduler]\nbind_address = "ipc:///a"\nio_threads = 2\ntrim_memory_threshold_bytes = "any"')
    for _ in range(2):
        assert scheduler("-c", file, "-ls", "4", SCALER_SCHEDULER_IO_THREADS="3") == scheduler("ipc:///a")
    retired = ("io_threads", "load_balance_seconds", "trim_memory_threshold_bytes")
    assert sorted(caplog.messages) == [f"{key} is no longer needed and has no effect" for key in retired]


def test_missing_setting_error_lists_all_ways_to_set_it() -> None:
    with pytest.raises(ConfigError) as caught:
        scheduler()
    for way in ("--bind-address", "bind_address in [scheduler]", "SCALER_SCHEDULER_BIND_ADDRESS"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[scheduler]\nworker_timout_seconds = 3", r"\[scheduler\]: unknown key 'worker_timout_seconds'; did you mean"),
        ("[scheduler]\nxyzzy = 3", r"unknown key 'xyzzy'; known: bind_address"),
        ("[schedular]", r"unknown section \[schedular\]; did you mean 'scheduler'"),
        ("protected = true", "'protected' is above the first section"),
        ('[scheduler]\nmax_tasks_per_client = "3"', r"max_tasks_per_client = '3': must be a valid integer"),
        ("[scheduler]\nmax_tasks_per_client = 3.0", r"max_tasks_per_client = 3.0: must be a valid integer"),
        ("[scheduler]\nmax_tasks_per_client = true", r"max_tasks_per_client = true: must be a valid integer"),
        ("[scheduler]\nmax_tasks_per_client = 0", r"max_tasks_per_client = 0: must be -1 \(no limit\), or from 1"),
        ("[scheduler]\nprotected = 1", r"protected = 1: must be a valid boolean"),
        ("[scheduler]\nbind_address = 8516", r"bind_address = 8516: must be a valid string"),
        ("[scheduler]\nmonitor_address = 1979-05-27", r"must be a valid string"),
        ("[scheduler]\nlogging_paths = [1]", r"logging_paths = \[1\]: must be a valid string"),
        ('[scheduler]\nbind_address = "localhost"', "write tcp://host:port or ipc://path"),
        ("[scheduler\n", "is not a TOML file"),
        ("[[scheduler]]", r"scheduler must be one table"),
        ("worker_manager = 3", "'worker_manager' stands above|must be an array of tables"),
    ],
)
def test_error_in_a_file_names_the_setting_and_file(write: WriteFile, text: str, reason: str) -> None:
    file = write(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        scheduler("-c", file)
    assert file in str(caught.value)


def test_missing_file_error_names_the_file() -> None:
    with pytest.raises(ConfigError, match=r"'/nowhere/x.toml': No such file"):
        scheduler("-c", "/nowhere/x.toml")


def test_mistyped_variables_are_reported_but_not_those_of_other_programs() -> None:
    scheduler("ipc:///a", SCALER_SCHEDULER_SERVICE_HOST="10.0.0.1", SCALER_SCHEDULER_PORT_8516_TCP="tcp://x")
    with pytest.raises(ConfigError, match="SCALER_SCHEDULER_PROTECTE; did you mean SCALER_SCHEDULER_PROTECTED"):
        scheduler("ipc:///a", SCALER_SCHEDULER_PROTECTE="3")


def test_text_from_flags_and_environment_is_parsed_by_type() -> None:
    config = scheduler("ipc:///a", "-wt", "2.5", "-ll", "debug", "-lp", "/dev/stdout", "x.log", "-mt", "-1")
    assert (config.worker_timeout_seconds, config.logging_level) == (2.5, "DEBUG")
    assert config.logging_paths == ("/dev/stdout", "x.log")
    assert scheduler("ipc:///a", SCALER_SCHEDULER_LOGGING_PATHS="a.log, b.log").logging_paths == ("a.log", "b.log")
    assert scheduler("ipc:///a", SCALER_SCHEDULER_PROTECTED="False").protected is False


def test_boolean_flags_may_have_a_value() -> None:
    assert scheduler("-p", "ipc:///a").protected is True
    assert scheduler("-p", "False", "ipc:///a").protected is False
    assert scheduler("ipc:///a", "--protected=false").protected is False
    assert scheduler("ipc:///a", "-p", "-mt", "3").max_number_of_tasks_waiting == 3
    with pytest.raises(ConfigError, match="--protected = 'maybe'"):
        scheduler("ipc:///a", "-p", "maybe")


def test_address_may_precede_follow_or_split_the_flags() -> None:
    for arguments in (["ipc:///a", "-mt", "3"], ["-mt", "3", "ipc:///a"], ["-mt", "3", "ipc:///a", "-ct", "9"]):
        assert scheduler(*arguments).bind_address == "ipc:///a"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ipc:///a", "--protecte", "3"], "unknown flag --protecte; did you mean '--protected'"),
        (["ipc:///a", "--ports", "3"], "unknown flag --ports; -h lists all flags"),
        (["ipc:///a", "--event_loop", "3"], "did you mean '--event-loop'"),
        (["ipc:///a", "-zz", "3"], "unknown flag -zz"),
        (["ipc:///a", "-os", "ipc:///b"], "unknown flag -os;"),
        (["ipc:///a", "--event", "uvloop"], "unknown flag --event"),
        (["ipc:///a", "ipc:///b"], "unexpected argument 'ipc:///b'"),
        (["ipc:///a", "--bind-address", "ipc:///b"], "bind_address is given twice"),
        (["ipc:///a", "-mt"], "expected one argument"),
        (["ipc:///a", "-mt", "many"], "--max-number-of-tasks-waiting = 'many': must be a valid integer"),
    ],
)
def test_error_on_the_command_line_names_the_flag(arguments: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        scheduler(*arguments)
