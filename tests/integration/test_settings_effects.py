"""Where the effect of every setting is tested: a key that is new needs a test, and a line here.

`EFFECTS` names, for each model and key, a test that sees what the key does through the public door. Keys that all
components share are listed once per component.
"""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from pathlib import Path

import pytest

from scaler.cluster.combo import ComboSettings
from scaler.config.models import (
    BaremetalNativeConfig,
    ClusterConfig,
    LauncherConfig,
    ObjectStorageServerConfig,
    SchedulerConfig,
    TopConfig,
    WebUiConfig,
    WorkerConfig,
)
from scaler.config.setting import SettingsModel, describe

TESTS = Path(__file__).parents[1]

CLUSTERS = "integration/test_settings_clusters.py::"
COMMANDS = "integration/test_settings_commands.py::"
SCHEDULER = "integration/test_settings_scheduler.py::"
WORKERS = "integration/test_settings_workers.py::"
MONITORS = "integration/test_settings_monitors.py::"
TOP = "integration/test_top.py::"
WEB = "integration/test_web_ui.py::"
STORAGE = "integration/test_object_storage.py::"
LAUNCHER = "integration/test_launcher.py::"

LOG_OF_SERVERS = COMMANDS + "test_a_server_writes_its_log_where_it_was_told_in_the_format_and_from_the_level_on"
CONFIGURED_LOG_OF_SERVERS = COMMANDS + "test_a_server_writes_its_log_as_the_file_of_a_logging_configuration_says"
LOG_OF_ALL = CLUSTERS + "test_every_process_writes_its_log_to_every_path_in_the_format_asked_for"
WHO_THEY_ARE = WORKERS + "test_manager_and_workers_say_who_they_are_where_they_were_told_to"
HEARTBEATS = WORKERS + "test_managers_and_workers_tell_how_they_are_on_every_heartbeat"
EVENT_LOOP = CLUSTERS + "test_servers_managers_and_workers_use_the_event_loop_they_were_told"
OLDER_NAMES_OF_SERVERS = COMMANDS + "test_servers_know_the_older_names_of_their_keys"
OLDER_NAMES_OF_WORKERS = WORKERS + "test_sections_and_keys_by_their_older_names_start_the_same_workers"
BALANCE = SCHEDULER + "test_a_worker_without_progress_is_relieved_after_so_many_looks_so_far_apart"
SILENT_CLIENT = SCHEDULER + "test_a_silent_client_is_given_up_after_its_timeout_and_its_objects_after_their_retention"
POLICY = SCHEDULER + "test_managers_are_told_what_the_policy_wants"
TOP_TIMEOUT = MONITORS + "test_the_terminal_monitor_waits_for_its_timeout_and_no_longer"

SERVER_LOGGING = {
    "logging_level": LOG_OF_SERVERS,
    "logging_format": LOG_OF_SERVERS,
    "logging_paths": LOG_OF_SERVERS,
    "logging_config_file": CONFIGURED_LOG_OF_SERVERS,
}
OF_WORKERS = {
    "object_storage_address": (
        WORKERS + "test_workers_use_the_object_storage_that_they_are_told_and_otherwise_the_advertised_one"
    ),
    "worker_manager_id": WHO_THEY_ARE,
    "per_worker_capabilities": CLUSTERS + "test_workers_offer_what_they_were_told_to_offer",
    "per_worker_task_queue_size": SCHEDULER + "test_no_more_tasks_wait_behind_a_worker_than_its_queue_size",
    "heartbeat_interval_seconds": HEARTBEATS,
    "task_timeout_seconds": CLUSTERS + "test_a_task_ends_at_the_workers_time_limit",
    "death_timeout_seconds": WORKERS + "test_a_worker_that_finds_no_scheduler_ends_at_its_death_timeout",
    "garbage_collect_interval_seconds": (CLUSTERS + "test_an_idle_processor_collects_garbage_as_often_as_it_was_told"),
    "trim_memory_threshold_bytes": CLUSTERS + "test_a_large_processor_gives_back_what_it_does_not_use",
    "hard_processor_suspend": CLUSTERS + "test_a_task_that_waits_for_its_own_is_stopped_meanwhile",
    "preload": CLUSTERS + "test_processors_were_preloaded",
    "io_threads": WORKERS + "test_manager_and_workers_use_the_threads_they_were_told",
    "event_loop": EVENT_LOOP,
    "logging_level": WORKERS + "test_only_lines_from_the_level_on_are_written",
    "logging_format": LOG_OF_ALL,
    "logging_paths": LOG_OF_ALL,
    "logging_config_file": WORKERS + "test_workers_log_as_their_manager_was_told_to",
}
OF_MANAGERS = {**OF_WORKERS, "scheduler_address": WHO_THEY_ARE, "worker_scheduler_address": WHO_THEY_ARE}

EFFECTS: dict[type, dict[str, str]] = {
    ObjectStorageServerConfig: {
        "bind_address": STORAGE + "test_a_storage_may_come_up_after_those_who_need_it",
        "memory_limit_bytes": STORAGE + "test_the_limits_of_the_command_line_hold",
        "max_object_bytes": STORAGE + "test_the_limits_of_the_command_line_hold",
        **SERVER_LOGGING,
    },
    SchedulerConfig: {
        "bind_address": SCHEDULER + "test_a_scheduler_is_where_its_addresses_say",
        "object_storage_address": (SCHEDULER + "test_with_an_address_the_object_storage_is_the_one_that_runs_there"),
        "advertised_object_storage_address": (
            SCHEDULER + "test_clients_and_workers_are_told_the_advertised_address_of_the_storage"
        ),
        "monitor_address": SCHEDULER + "test_a_scheduler_is_where_its_addresses_say",
        "protected": SCHEDULER + "test_only_an_unprotected_scheduler_ends_when_a_client_asks",
        "max_number_of_tasks_waiting": (
            SCHEDULER + "test_a_task_beyond_those_that_may_wait_is_rejected_with_the_limits_name"
        ),
        "client_timeout_seconds": SILENT_CLIENT,
        "worker_timeout_seconds": SCHEDULER + "test_a_silent_worker_is_given_up_after_its_timeout",
        "object_retention_seconds": SILENT_CLIENT,
        "load_balance_seconds": BALANCE,
        "load_balance_trigger_times": BALANCE,
        "event_loop": EVENT_LOOP,
        "io_threads": COMMANDS + "test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_default",
        "status_report_interval_seconds": (SCHEDULER + "test_monitors_are_told_as_often_as_the_status_interval_says"),
        "policy_engine_type": POLICY,
        "policy_content": POLICY,
        **SERVER_LOGGING,
    },
    BaremetalNativeConfig: {
        **OF_MANAGERS,
        "type": OLDER_NAMES_OF_WORKERS,
        "max_task_concurrency": (
            WORKERS + "test_a_dynamic_manager_starts_what_it_is_told_to_and_no_more_than_its_limit"
        ),
        "mode": WHO_THEY_ARE,
        "worker_type": WHO_THEY_ARE,
    },
    ClusterConfig: {
        **OF_MANAGERS,
        "num_of_workers": CLUSTERS + "test_workers_are_as_many_as_asked_for_and_their_managers",
    },
    WorkerConfig: {
        **OF_WORKERS,
        "scheduler_address": WHO_THEY_ARE,
        "unit_id": WHO_THEY_ARE,
        "unit_id_from": "integration/test_ecs_manager.py::"
        "test_a_manager_that_was_killed_and_started_again_adopts_its_tasks",
        "slots": WHO_THEY_ARE,
        "stop_grace_seconds": WORKERS + "test_a_worker_that_is_told_to_end_gives_its_task_so_long",
    },
    LauncherConfig: {
        **dict.fromkeys(
            ("object_storage_server", "scheduler", "worker_managers"),
            LAUNCHER + "test_a_file_is_started_in_order_and_stopped_in_reverse",
        ),
        "webui": WEB + "test_a_file_with_a_section_for_it_starts_it_and_says_where",
    },
    WebUiConfig: {
        "monitor_address": WEB + "test_work_is_seen_as_json_events_and_metrics",
        "web_host": WEB + "test_a_page_open_to_others_is_warned_about",
        "web_port": WEB + "test_a_taken_port_is_named_with_who_has_it",
        "allowed_hosts": MONITORS + "test_browsers_may_know_the_server_by_the_names_it_was_told",
        "broadcast_interval_seconds": MONITORS + "test_browsers_are_told_no_more_often_than_the_interval",
        "task_log_max_size": MONITORS + "test_a_page_lists_as_many_of_the_last_tasks_as_it_was_told_to",
        **dict.fromkeys(
            ("logging_level", "logging_format", "logging_paths"),
            MONITORS + "test_the_web_server_writes_its_log_where_it_was_told_in_the_format_and_from_the_level_on",
        ),
        "logging_config_file": (
            MONITORS + "test_the_web_server_writes_its_log_as_the_file_of_a_logging_configuration_says"
        ),
    },
    TopConfig: {
        "monitor_address": TOP + "test_it_prints_panels_workers_and_counts_once_as_text_and_as_json",
        "timeout_seconds": TOP_TIMEOUT,
    },
}

ALIASES = {
    (ObjectStorageServerConfig, "object_storage_address"): OLDER_NAMES_OF_SERVERS,
    (SchedulerConfig, "scheduler_address"): OLDER_NAMES_OF_SERVERS,
    (SchedulerConfig, "allocate_policy"): (
        SCHEDULER + "test_allocate_policy_chooses_which_idle_worker_a_plain_task_goes_to"
    ),
    (BaremetalNativeConfig, "num_of_workers"): OLDER_NAMES_OF_WORKERS,
    (WebUiConfig, "gui_address"): MONITORS + "test_the_older_address_of_the_page_is_its_host_and_port",
    (WebUiConfig, "port"): WEB + "test_a_taken_port_is_named_with_who_has_it",
    (TopConfig, "timeout"): TOP_TIMEOUT,
    (ClusterConfig, "max_task_concurrency"): "unit/config/test_config_commands.py::"
    "test_the_number_of_workers_has_its_names_everywhere",
}


def settings_of(model: type) -> set[str]:
    if dataclasses.is_dataclass(model):
        return {item.name for item in dataclasses.fields(model)}
    fields: dict[str, object] = model.model_fields  # type: ignore[attr-defined]
    return set(fields)


@cache
def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("model", EFFECTS, ids=lambda model: model.__name__)
def test_the_effect_of_every_setting_is_tested(model: type) -> None:
    assert set(EFFECTS[model]) == settings_of(model)


@pytest.mark.parametrize(
    "model", [model for model in EFFECTS if model is not WorkerConfig and model is not LauncherConfig]
)
def test_every_other_name_of_a_setting_is_tested(model: type[SettingsModel]) -> None:
    known = {alias.name for item in describe(model).values() for alias in item.setting.aliases}
    assert {name for owner, name in ALIASES if owner is model} == known


def test_every_argument_of_a_combo_is_a_setting_whose_effect_is_tested() -> None:
    older_names = {"per_worker_queue_size"}
    assert set(ComboSettings.__annotations__) - older_names <= {*EFFECTS[SchedulerConfig], *EFFECTS[ClusterConfig]}


def test_the_tests_that_are_named_here_exist() -> None:
    named = {*ALIASES.values(), *(test for tests in EFFECTS.values() for test in tests.values())}
    for test in named:
        path, _, name = test.partition("::")
        assert name in functions_in(TESTS / path), test
