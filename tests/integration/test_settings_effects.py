"""Where the effect of every setting is tested: a key that is new needs a test, and a line here.

`EFFECTS` names, for each model and key, a test that sees what the key does through the public door. Keys that all
components share are listed once per component.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from functools import cache
from pathlib import Path

import pytest

import scaler
from scaler.cluster.combo import SchedulerClusterCombo
from scaler.config.commands import LauncherConfig
from scaler.config.monitors import TopConfig, WebUiConfig
from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig
from scaler.config.setting import SettingsModel, describe
from scaler.config.worker import WorkerConfig
from scaler.config.worker_managers import PROCESSOR_SETTINGS, ClusterConfig
from scaler.worker_manager.aws_ec2 import AwsEc2Config
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager.kubernetes import KubernetesConfig
from scaler.worker_manager.orb_aws_ec2 import OrbAwsEc2Config
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.ssh import SshConfig
from scaler.worker_manager.symphony.settings import SymphonyConfig

TESTS = Path(__file__).parents[1]

AWS = "engines/test_settings_aws.py::"
CLOUDS = "engines/test_settings_clouds.py::"
CLUSTERS = "integration/test_settings_clusters.py::"
COMMANDS = "integration/test_settings_commands.py::"
SCHEDULER = "integration/test_settings_scheduler.py::"
ADMISSION = "integration/test_admission.py::"
ACCOUNTS = "unit/scheduler/test_accounts.py::"
WORKERS = "integration/test_settings_workers.py::"
MEMORY = "integration/test_worker_memory.py::"
MONITORS = "integration/test_settings_monitors.py::"
TOP = "integration/test_top.py::"
WEB_LIMITS = "integration/test_web_limits.py::"
WEB = "integration/test_web_ui.py::"
KUBERNETES = "engines/test_settings_kubernetes.py::"
ORB = "engines/test_orb_backend.py::"
HPC_SETUP = "engines/test_hpc_setup.py::"
ECS_SETUP = "engines/test_ecs_setup.py::"
SLURM = "engines/test_slurm.py::"
OFFLOAD = "unit/worker_manager/test_offload_core.py::"
STORAGE = "integration/test_object_storage.py::"
SSH = "engines/test_ssh_backend.py::"
OVER_SSH = (
    "engines/test_ssh_manager.py::test_a_file_runs_tasks_on_hosts_through_tunnels_and_nothing_survives_the_manager"
)
FILE_IS_STARTED = "integration/test_launcher.py::test_a_file_is_started_in_order_and_stopped_in_reverse"

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
WITHOUT_KEYS = ADMISSION + "test_a_cluster_without_authentication_lets_only_those_in_who_say_so_too"
PROVES_ITSELF = ADMISSION + "test_every_command_that_a_server_with_keys_refuses_says_why_and_what_to_do"
COMPRESSED = (
    "integration/test_compression.py::test_compressible_values_are_small_on_the_way_unless_one_side_compresses_nothing"
)
MONITORS_COMPRESSED = "integration/test_compression.py::test_monitors_announce_compression_unless_they_are_told_not_to"
HOST_STORE = "integration/test_host_store.py::"
IN_TRANSIT = "integration/test_in_transit.py::"
EC2 = "engines/test_ec2.py::"
UNIT_CREDENTIALS = "engines/test_unit_credentials.py::"
OF_CONTAINERS = UNIT_CREDENTIALS + "test_containers_get_their_credential_from_the_parameter_store_and_from_nowhere_else"
TOP_TIMEOUT = MONITORS + "test_the_terminal_monitor_waits_for_its_timeout_and_no_longer"


def seen_by(test: str, keys: str) -> dict[str, str]:
    """Return these keys, all of which one test is about."""
    return dict.fromkeys(keys.split(), test)


SERVER_LOGGING = {
    **seen_by(LOG_OF_SERVERS, "logging_level logging_format logging_paths"),
    "logging_config_file": CONFIGURED_LOG_OF_SERVERS,
}
OF_WORKERS = {
    "object_storage_address": (
        WORKERS + "test_workers_use_the_object_storage_that_they_are_told_and_otherwise_the_advertised_one"
    ),
    "host_name": HOST_STORE + "test_values_of_tasks_are_in_the_store_of_their_host_and_come_to_the_client_when_it_asks",
    "store_memory_limit_bytes": HOST_STORE
    + "test_a_result_that_is_larger_than_the_store_of_its_host_fails_and_names_the_setting",
    "store_spill_directory": HOST_STORE + "test_results_that_only_a_full_store_has_go_to_its_disk_and_come_back",
    "worker_manager_id": WHO_THEY_ARE,
    "per_worker_capabilities": CLUSTERS + "test_workers_offer_what_they_were_told_to_offer",
    "per_worker_task_queue_size": SCHEDULER + "test_no_more_tasks_wait_behind_a_worker_than_its_queue_size",
    "heartbeat_interval_seconds": HEARTBEATS,
    "task_timeout_seconds": CLUSTERS + "test_a_task_ends_at_the_workers_time_limit",
    "death_timeout_seconds": WORKERS + "test_a_worker_that_finds_no_scheduler_ends_at_its_death_timeout",
    "garbage_collect_interval_seconds": (CLUSTERS + "test_an_idle_processor_collects_garbage_as_often_as_it_was_told"),
    "trim_memory_threshold_bytes": CLUSTERS + "test_a_large_processor_gives_back_what_it_does_not_use",
    "memory_limit_bytes": MEMORY + "test_the_largest_task_of_a_worker_is_ended_first_and_tried_again",
    "processor_memory_limit_bytes": (
        MEMORY + "test_a_task_above_its_limit_fails_with_limit_and_peak_and_its_neighbours_go_on"
    ),
    "max_tasks_per_processor": MEMORY + "test_a_processor_is_replaced_after_so_many_tasks",
    "max_processor_memory_growth": MEMORY + "test_a_processor_that_grows_is_replaced_between_tasks",
    "max_suspended_tasks": (
        "integration/test_client_nested.py::test_deeper_than_max_suspended_tasks_ends_at_once_and_says_so"
    ),
    "profile_interval_seconds": (
        "integration/test_profiles.py::"
        "test_profile_interval_seconds_sets_how_many_samples_there_are_and_0_switches_them_off"
    ),
    "hard_processor_suspend": CLUSTERS + "test_a_task_that_waits_for_its_own_is_stopped_meanwhile",
    "requirements": "integration/test_requirements.py::test_workers_import_what_their_manager_requires_from_one_folder",
    "preload": CLUSTERS + "test_processors_were_preloaded",
    "preload_timeout_seconds": WORKERS + "test_workers_whose_preload_hangs_end_say_so_and_are_replaced_ever_later",
    "io_threads": WORKERS + "test_manager_and_workers_use_the_threads_they_were_told",
    "event_loop": EVENT_LOOP,
    "logging_level": WORKERS + "test_only_lines_from_the_level_on_are_written",
    "logging_format": LOG_OF_ALL,
    "logging_paths": LOG_OF_ALL,
    "logging_config_file": WORKERS + "test_workers_log_as_their_manager_was_told_to",
}
OF_MANAGERS = {
    **OF_WORKERS,
    "compression": COMPRESSED,
    **seen_by(WHO_THEY_ARE, "scheduler_address worker_scheduler_address"),
}

RUNS_AS_TOLD = CLOUDS + "test_a_manager_says_who_it_is_and_runs_as_it_was_told"
UNITS_ARE_TOLD = CLOUDS + "test_units_are_told_all_that_their_manager_was_told"
SESSION = CLOUDS + "test_a_session_is_what_the_manager_was_told"
JOBS_AT_ONCE = AWS + "test_no_more_tasks_are_jobs_at_the_same_time_than_the_manager_was_told"
OF_CLOUD_MANAGERS = {
    **dict.fromkeys(OF_WORKERS, UNITS_ARE_TOLD),
    "scheduler_address": RUNS_AS_TOLD,
    "worker_scheduler_address": UNITS_ARE_TOLD,
    "insecure_no_auth": PROVES_ITSELF,
    "compression": UNITS_ARE_TOLD,
    "unit_price": WHO_THEY_ARE,
    **seen_by(
        RUNS_AS_TOLD,
        "type worker_manager_id per_worker_capabilities heartbeat_interval_seconds io_threads event_loop "
        "logging_level logging_format logging_paths",
    ),
    "logging_config_file": WORKERS + "test_workers_log_as_their_manager_was_told_to",
}
ARM = (
    "unit/worker_manager/test_ecs_definition.py::test_tasks_of_several_managers_have_sizes_and_processors_of_their_own"
)
OF_A_SIZE = "test_capabilities_have_queues_and_definitions_of_their_own_size"
IN_A_BUCKET = "test_without_an_image_the_version_that_runs_here_is_put_into_a_bucket_for_tasks_to_install"
OF_AWS = seen_by(
    AWS + "test_aws_is_asked_where_and_as_whom_the_manager_was_told", "aws_region aws_endpoint_url aws_profile"
)

EFFECTS: dict[type, dict[str, str]] = {
    ObjectStorageServerConfig: {
        "bind_address": STORAGE + "test_a_storage_may_come_up_after_those_who_need_it",
        "memory_limit_bytes": STORAGE + "test_the_limits_of_the_command_line_hold",
        "max_object_bytes": STORAGE + "test_the_limits_of_the_command_line_hold",
        "cache_limit_bytes": STORAGE + "test_the_limits_of_the_command_line_hold",
        **seen_by(
            STORAGE + "test_a_full_spill_directory_refuses_new_objects_and_loses_none",
            "spill_directory spill_limit_bytes",
        ),
        "state_directory": (
            "integration/test_storage_on_disk.py::test_an_answer_comes_only_when_the_disk_has_the_object"
        ),
        "backend": (
            "integration/test_backend.py::test_large_values_of_a_client_go_to_the_backend_and_from_there_to_workers"
        ),
        "credentials": IN_TRANSIT
        + "test_with_keys_what_is_recorded_in_between_has_no_source_argument_result_or_failure",
        "compression": COMPRESSED,
        "insecure_no_auth": IN_TRANSIT + "test_without_authentication_what_is_recorded_has_all_of_them",
        **SERVER_LOGGING,
    },
    SchedulerConfig: {
        "credentials": ADMISSION + "test_a_client_with_a_credential_works_over_an_encrypted_connection",
        "insecure_no_auth": WITHOUT_KEYS,
        "compression": COMPRESSED,
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
        "max_tasks_per_client": ACCOUNTS + "test_tasks_are_limited_by_key_in_all_its_sessions",
        **seen_by(
            ACCOUNTS + "test_bytes_are_limited_before_anything_of_a_task_is_kept", "max_bytes_per_client max_bytes"
        ),
        "max_connections_per_client": (
            ACCOUNTS + "test_connections_are_limited_by_key_and_a_peer_that_is_here_comes_back"
        ),
        "max_connections": ACCOUNTS + "test_connections_are_limited_in_all",
        "max_sessions_per_hour": (
            ACCOUNTS + "test_sessions_an_hour_are_limited_by_key_and_coming_back_within_the_lease_opens_none"
        ),
        "client_timeout_seconds": SILENT_CLIENT,
        "session_retention_seconds": (
            "unit/scheduler/test_sessions.py::test_a_session_expires_after_its_last_use_and_not_before_its_last_task"
        ),
        "worker_timeout_seconds": SCHEDULER + "test_a_silent_worker_is_given_up_after_its_timeout",
        "object_retention_seconds": SILENT_CLIENT,
        **seen_by(BALANCE, "load_balance_seconds load_balance_trigger_times"),
        "event_loop": EVENT_LOOP,
        "io_threads": COMMANDS + "test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_default",
        "status_report_interval_seconds": (SCHEDULER + "test_monitors_are_told_as_often_as_the_status_interval_says"),
        **seen_by(POLICY, "policy_engine_type policy_content"),
        "spend_limit": (
            "integration/test_spend_limit.py::test_at_the_limit_paid_workers_end_after_their_tasks_and_a_restart_forgets_nothing"
        ),
        "audit_path": (
            "integration/test_audit.py::test_what_a_client_did_is_in_the_file_and_in_the_answer_of_the_command"
        ),
        "state_directory": (
            "integration/test_state_directory.py::test_a_cluster_that_was_killed_with_its_launcher_continues_where_it_stopped"
        ),
        **seen_by(
            SCHEDULER + "test_the_history_on_disk_is_as_old_and_as_large_as_the_scheduler_was_told",
            "history_retention_seconds history_limit_bytes",
        ),
        **seen_by(
            SCHEDULER + "test_the_object_storage_inside_spills_where_and_as_much_as_the_scheduler_was_told",
            "spill_directory spill_limit_bytes",
        ),
        **SERVER_LOGGING,
    },
    BaremetalNativeConfig: {
        **OF_MANAGERS,
        "credentials": UNIT_CREDENTIALS
        + "test_local_units_authenticate_and_their_key_shows_nowhere_and_ends_them_alone",
        "insecure_no_auth": WORKERS + "test_manager_and_workers_use_the_threads_they_were_told",
        "type": OLDER_NAMES_OF_WORKERS,
        "max_task_concurrency": (
            WORKERS + "test_a_dynamic_manager_starts_what_it_is_told_to_and_no_more_than_its_limit"
        ),
        **seen_by(WHO_THEY_ARE, "mode worker_type unit_price"),
    },
    AwsRawEcsConfig: {
        **OF_CLOUD_MANAGERS,
        **OF_AWS,
        "object_storage_backend": (
            "engines/test_ecs_setup.py::test_tasks_may_use_the_folders_of_runs_in_the_backend_and_nothing_else"
        ),
        "credentials": OF_CONTAINERS,
        "max_task_concurrency": (
            "engines/test_ecs_backend.py::test_units_are_as_many_tasks_as_hold_the_wanted_workers"
        ),
        **seen_by(
            AWS + "test_tasks_on_ecs_are_what_the_manager_was_told",
            "ecs_subnets ecs_security_groups ecs_assign_public_ip ecs_cluster ecs_task_definition "
            "ecs_task_cpu ecs_task_memory ecs_capacity_provider",
        ),
        "s3_bucket": ECS_SETUP + IN_A_BUCKET,
        "worker_requirements": ECS_SETUP + IN_A_BUCKET,
        "ecs_cpu_architecture": ARM,
        "ecs_task_image": AWS + "test_tasks_on_ecs_have_the_image_that_the_manager_was_told",
    },
    AwsEc2Config: {
        **OF_CLOUD_MANAGERS,
        **OF_AWS,
        "max_task_concurrency": RUNS_AS_TOLD,
        "credentials": OF_CONTAINERS,
        "object_storage_backend": EC2 + "test_setup_makes_what_is_needed_once_and_adds_a_version_for_other_settings",
        **seen_by(
            EC2 + "test_instances_are_what_the_manager_was_told",
            "ec2_image ec2_instance_types ec2_subnets ec2_security_groups ec2_purchase ec2_launch_template "
            "ec2_key_name ec2_volume_gigabytes ec2_root_device ec2_setup ec2_python",
        ),
        **seen_by(
            EC2 + "test_setup_puts_the_installed_version_into_the_bucket_for_instances_and_nothing_else_may_they_read",
            "s3_bucket worker_requirements",
        ),
        "ec2_slots": RUNS_AS_TOLD,
    },
    AwsHpcConfig: {
        **OF_CLOUD_MANAGERS,
        **OF_AWS,
        "object_storage_backend": "engines/test_hpc_setup.py::test_roles_may_do_what_they_must_and_no_more",
        "credentials": OF_CONTAINERS,
        "mode": RUNS_AS_TOLD,
        "backend": AWS + "test_another_service_than_batch_is_refused",
        "max_task_concurrency": JOBS_AT_ONCE,
        "max_concurrent_jobs": JOBS_AT_ONCE,
        **seen_by(
            AWS + "test_jobs_are_what_the_manager_was_told",
            "job_queue job_definition s3_bucket s3_prefix name job_timeout_minutes",
        ),
        "batch_capacity": HPC_SETUP + "test_instances_have_a_role_and_cost_nothing_while_there_is_no_work",
        "batch_subnets": HPC_SETUP + "test_a_region_without_a_default_vpc_needs_subnets",
        "batch_security_groups": HPC_SETUP + "test_own_groups_are_used",
        "worker_requirements": HPC_SETUP
        + "test_without_an_image_jobs_install_the_version_that_runs_here_from_the_bucket",
        "batch_cpu_architecture": HPC_SETUP + OF_A_SIZE,
        **seen_by(HPC_SETUP + OF_A_SIZE, "batch_gpus batch_instance_types"),
        "batch_image": HPC_SETUP + "test_jobs_run_in_the_image_of_the_settings_and_install_nothing",
        **seen_by(HPC_SETUP + "test_what_is_made_fits_together", "batch_cpu batch_memory"),
    },
    KubernetesConfig: {
        **{key: test.replace(CLOUDS, KUBERNETES) for key, test in OF_CLOUD_MANAGERS.items()},
        "credentials": "engines/test_kubernetes_manager.py::"
        "test_a_manager_that_was_killed_adopts_its_pods_whose_key_shows_nowhere_and_goes_with_them",
        "max_task_concurrency": KUBERNETES + "test_a_manager_has_as_many_pods_as_hold_the_wanted_workers",
        **seen_by(
            KUBERNETES + "test_the_cluster_is_that_of_the_file_the_context_and_the_namespace",
            "k8s_kubeconfig k8s_context k8s_namespace",
        ),
        **seen_by(
            "unit/worker_manager/test_kubernetes_pods.py::test_a_pod_has_what_the_settings_say",
            "k8s_image k8s_image_pull_policy k8s_image_pull_secrets k8s_cpu k8s_memory k8s_gpus k8s_gpu_resource "
            "k8s_node_selector k8s_tolerations k8s_labels k8s_annotations",
        ),
        **seen_by(
            KUBERNETES + "test_a_priority_class_and_a_service_account_must_exist",
            "k8s_priority_class k8s_service_account",
        ),
        "k8s_slots": KUBERNETES + "test_a_manager_has_as_many_pods_as_hold_the_wanted_workers",
        "k8s_pod_template": KUBERNETES + "test_a_template_is_a_file_with_one_pod",
        "k8s_stop_seconds": "engines/test_kubernetes_backend.py::"
        "test_a_pod_that_does_not_end_at_sigterm_is_killed_after_its_grace",
    },
    OrbAwsEc2Config: {
        **OF_CLOUD_MANAGERS,
        **OF_AWS,
        "credentials": PROVES_ITSELF,
        "object_storage_backend": ORB + "test_what_no_machine_could_start_with_is_refused_at_once",
        **seen_by(ORB + "test_machines_are_requested_listed_and_returned", "max_task_concurrency orb_slots"),
        "orb_template": ORB + "test_machines_of_an_earlier_process_are_adopted_and_those_of_another_template_are_not",
        "orb_config": ORB + "test_an_orb_that_was_never_initialised_is_an_error_that_says_so",
        **seen_by(
            ORB + "test_tasks_run_on_a_machine_which_shuts_down_when_its_worker_has_exited", "orb_setup orb_python"
        ),
    },
    SlurmConfig: {
        **OF_CLOUD_MANAGERS,
        "credentials": SLURM + "test_work_takes_it_from_no_jobs_up_and_down_to_none_and_the_credential_stays_secret",
        **seen_by(
            SLURM + "test_a_job_is_what_the_settings_ask_for",
            "slurm_partition slurm_account slurm_qos slurm_constraint slurm_cpus slurm_memory slurm_gpus "
            "slurm_time_minutes slurm_setup slurm_log_directory slurm_options slurm_prefix "
            "slurm_backlog max_task_concurrency",
        ),
        "slurm_python": SLURM + "test_a_job_whose_worker_does_not_start_shows_the_last_line_of_its_output",
        "slurm_system": "engines/test_batch_systems.py::test_jobs_ask_for_what_the_settings_say",
    },
    SymphonyConfig: {
        **OF_CLOUD_MANAGERS,
        "credentials": PROVES_ITSELF,
        "per_worker_task_queue_size": OFFLOAD + "test_more_than_the_queue_holds_is_given_back",
        "task_timeout_seconds": OFFLOAD
        + "test_the_time_limit_counts_from_the_start_and_not_from_when_it_was_handed_on",
        "death_timeout_seconds": OFFLOAD + "test_an_agent_that_hears_nothing_for_too_long_ends",
        "preload": "unit/worker/test_job.py::test_a_preload_hook_is_called_once_in_a_process_and_again_when_it_failed",
        **dict.fromkeys(
            PROCESSOR_SETTINGS,
            "unit/config/test_config_models.py::test_settings_of_processors_are_refused_where_tasks_run_elsewhere",
        ),
        "max_task_concurrency": RUNS_AS_TOLD,
        **seen_by(SESSION, "service_name symphony_user symphony_password_file session_name session_priority"),
    },
    SshConfig: {
        **OF_MANAGERS,
        "type": OVER_SSH,
        "unit_price": WHO_THEY_ARE,
        **seen_by(
            SSH + "test_units_get_all_settings_of_their_manager",
            "scheduler_address worker_scheduler_address object_storage_address worker_manager_id compression",
        ),
        "death_timeout_seconds": SSH + "test_nothing_stays_on_a_host_without_a_heartbeat_for_the_death_timeout",
        **seen_by(
            SSH + "test_slots_are_those_given_or_the_cores_of_each_host_and_no_unit_is_above_them",
            "hosts slots_per_host max_task_concurrency",
        ),
        **seen_by(SSH + "test_what_keeps_a_host_from_running_units_is_their_reason", "ssh_python ssh_options"),
        "ssh_packages": SSH + "test_a_host_without_a_python_of_ours_gets_an_environment_once",
        "tunnel": OVER_SSH,
        "insecure_no_auth": OVER_SSH,
        "credentials": "engines/test_ssh_manager.py::"
        "test_workers_get_the_credential_of_their_manager_through_the_connection",
    },
    ClusterConfig: {
        **OF_MANAGERS,
        **seen_by(PROVES_ITSELF, "credentials insecure_no_auth"),
        "num_of_workers": CLUSTERS + "test_workers_are_as_many_as_asked_for_and_their_managers",
    },
    WorkerConfig: {
        **OF_WORKERS,
        **seen_by(WHO_THEY_ARE, "scheduler_address unit_id slots"),
        "insecure_no_auth": WITHOUT_KEYS,
        "compression": COMPRESSED,
        "unit_id_from": "engines/test_ecs_manager.py::"
        "test_a_manager_that_was_killed_and_started_again_adopts_its_tasks",
        "gpus": "integration/test_task_resources.py::"
        "test_gpus_are_named_in_the_environment_and_memory_is_not_taken_twice",
        "stop_grace_seconds": WORKERS + "test_a_worker_that_is_told_to_end_gives_its_task_so_long",
        "hash_seed": "integration/test_interpreters.py::"
        "test_all_workers_have_one_hash_seed_unless_their_operator_chose_another",
    },
    LauncherConfig: {
        **seen_by(FILE_IS_STARTED, "object_storage_server scheduler worker_managers name"),
        "webui": WEB + "test_a_file_with_a_section_for_it_starts_it_and_says_where",
    },
    WebUiConfig: {
        "monitor_address": WEB + "test_work_is_seen_as_json_events_and_metrics",
        "credentials": PROVES_ITSELF,
        "compression": MONITORS_COMPRESSED,
        "insecure_no_auth": "unit/monitor/test_web_login.py::test_without_authentication_there_is_no_login",
        "web_host": WEB + "test_a_page_open_to_others_asks_for_a_token_and_warns_where_it_is_not_encrypted",
        "web_token_file": WEB + "test_a_terminal_shows_a_link_that_logs_in",
        **seen_by(WEB_LIMITS + "test_with_a_certificate_the_page_is_encrypted", "web_certificate_file web_key_file"),
        "web_port": WEB + "test_a_taken_port_is_named_and_the_page_is_at_a_port_after_it",
        "allowed_hosts": MONITORS + "test_browsers_may_know_the_server_by_the_names_it_was_told",
        "broadcast_interval_seconds": MONITORS + "test_browsers_are_told_no_more_often_than_the_interval",
        "task_log_max_size": MONITORS + "test_a_page_lists_as_many_of_the_last_tasks_as_it_was_told_to",
        **seen_by(
            MONITORS + "test_the_web_server_writes_its_log_where_it_was_told_in_the_format_and_from_the_level_on",
            "logging_level logging_format logging_paths",
        ),
        "logging_config_file": (
            MONITORS + "test_the_web_server_writes_its_log_as_the_file_of_a_logging_configuration_says"
        ),
    },
    TopConfig: {
        "monitor_address": TOP + "test_it_prints_panels_workers_and_counts_once_as_text_and_as_json",
        "timeout_seconds": TOP_TIMEOUT,
        "compression": MONITORS_COMPRESSED,
        **seen_by(PROVES_ITSELF, "credentials insecure_no_auth"),
    },
}

ALIASES = {
    (ObjectStorageServerConfig, "object_storage_address"): OLDER_NAMES_OF_SERVERS,
    (SchedulerConfig, "scheduler_address"): OLDER_NAMES_OF_SERVERS,
    (SchedulerConfig, "allocate_policy"): (
        SCHEDULER + "test_allocate_policy_chooses_which_idle_worker_a_plain_task_goes_to"
    ),
    (BaremetalNativeConfig, "num_of_workers"): OLDER_NAMES_OF_WORKERS,
    (AwsRawEcsConfig, "num_of_workers"): RUNS_AS_TOLD,
    (AwsHpcConfig, "num_of_workers"): RUNS_AS_TOLD,
    (AwsEc2Config, "num_of_workers"): RUNS_AS_TOLD,
    (OrbAwsEc2Config, "num_of_workers"): "unit/config/test_config_commands.py::"
    "test_the_number_of_workers_has_its_names_everywhere",
    (SlurmConfig, "num_of_workers"): RUNS_AS_TOLD,
    (SymphonyConfig, "num_of_workers"): RUNS_AS_TOLD,
    (KubernetesConfig, "num_of_workers"): KUBERNETES + "test_a_manager_says_who_it_is_and_runs_as_it_was_told",
    (WebUiConfig, "gui_address"): MONITORS + "test_the_older_address_of_the_page_is_its_host_and_port",
    (WebUiConfig, "port"): WEB + "test_a_taken_port_is_named_and_the_page_is_at_a_port_after_it",
    (TopConfig, "timeout"): TOP_TIMEOUT,
    (ClusterConfig, "max_task_concurrency"): "unit/config/test_config_commands.py::"
    "test_the_number_of_workers_has_its_names_everywhere",
}


def settings_of(model: type) -> set[str]:
    assert dataclasses.is_dataclass(model)
    return {item.name for item in dataclasses.fields(model)}


@cache
def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def models_of_the_package() -> set[str]:
    """Return the names of all models that settings are read into: those that no other model is based on."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for path in Path(scaler.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    models = {"SettingsModel"}
    while more := {name for name, above in bases.items() if above & models} - models:
        models |= more
    return models - set().union(*(bases[name] for name in models))


def test_every_model_of_settings_is_here() -> None:
    documents = {"OffloadConfig"}  # made by a manager from its own settings
    expected = {model.__name__ for model in EFFECTS if issubclass(model, SettingsModel)} - {"WorkerConfig"}
    assert models_of_the_package() == expected | documents


@pytest.mark.parametrize("model", EFFECTS, ids=lambda model: model.__name__)
def test_the_effect_of_every_setting_is_tested(model: type) -> None:
    assert set(EFFECTS[model]) == settings_of(model)


@pytest.mark.parametrize("model", [model for model in EFFECTS if issubclass(model, SettingsModel)])
def test_every_other_name_of_a_setting_is_tested(model: type[SettingsModel]) -> None:
    known = {alias.name for item in describe(model).values() for alias in item.setting.aliases}
    assert {name for owner, name in ALIASES if owner is model} == known


def test_every_argument_of_a_combo_is_a_setting_whose_effect_is_tested() -> None:
    arguments = set(inspect.signature(SchedulerClusterCombo).parameters)
    own = {"address", "n_workers", "per_worker_queue_size", "name", "web_port"}
    assert arguments - own <= {*EFFECTS[SchedulerConfig], *EFFECTS[ClusterConfig]}


def test_the_tests_that_are_named_here_exist() -> None:
    named = {*ALIASES.values(), *(test for tests in EFFECTS.values() for test in tests.values())}
    for test in named:
        path, _, name = test.partition("::")
        assert name in functions_in(TESTS / path), test
