"""Accepted and rejected values of the models, and derived values."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scaler.config.commands import launcher_config
from scaler.config.load import model_of, read_file
from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig
from scaler.config.setting import describe
from scaler.config.worker import ProcessorSettings, WorkerConfig
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig
from scaler.errors import ConfigError, UsageError
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager.symphony import SymphonyConfig

ADDRESS = "tcp://127.0.0.1:8516"


def worker_manager(**values: object) -> BaremetalNativeConfig:
    return model_of(BaremetalNativeConfig, {"scheduler_address": ADDRESS, "worker_manager_id": "m", **values})


def test_monitors_are_served_two_ports_above_the_scheduler() -> None:
    assert SchedulerConfig(bind_address=ADDRESS).monitor_address == "tcp://127.0.0.1:8518"


def test_scheduler_on_the_last_port_needs_an_explicit_monitor_address() -> None:
    with pytest.raises(UsageError, match="65537"):
        SchedulerConfig(bind_address="tcp://127.0.0.1:65535")


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]"])
def test_storage_on_all_addresses_is_found_at_the_schedulers_host(host: str, tmp_path: Path) -> None:
    def advertised(scheduler: str = "") -> str | None:
        file = tmp_path / "stack.toml"
        file.write_text(
            f'[object_storage_server]\nbind_address = "tcp://{host}:7"\n'
            f'[scheduler]\nbind_address = "{ADDRESS}"\n{scheduler}\n'
        )
        return launcher_config(read_file(str(file)), {}).scheduler.advertised_object_storage_address

    assert advertised() == "tcp://0.0.0.0:7"
    assert advertised('object_storage_address = "tcp://127.0.0.1:7"') == "tcp://127.0.0.1:7"
    assert advertised('advertised_object_storage_address = "tcp://store:8"') == "tcp://store:8"


def test_workers_connect_to_their_managers_address_by_default() -> None:
    assert worker_manager().worker_scheduler_address == ADDRESS
    assert worker_manager(worker_scheduler_address="tcp://host:1").worker_scheduler_address == "tcp://host:1"


def test_disk_limit_requires_a_directory() -> None:
    with pytest.raises(ConfigError, match="spill_limit_bytes has no effect without spill_directory"):
        model_of(ObjectStorageServerConfig, {"bind_address": ADDRESS, "spill_limit_bytes": 1000})


@pytest.mark.parametrize(
    "values",
    [
        {"max_task_concurrency": 0},
        {"max_task_concurrency": -2},
        {"max_task_concurrency": 2**63},
        {"per_worker_task_queue_size": 10**7},
        {"task_timeout_seconds": 1e10},
        {"death_timeout_seconds": 1e10},
        {"heartbeat_interval_seconds": 0},
        {"heartbeat_interval_seconds": float("nan")},
        {"death_timeout_seconds": float("inf")},
        {"heartbeat_interval_seconds": 300},
        {"memory_limit_bytes": 1000, "processor_memory_limit_bytes": 1001},
        {"per_worker_capabilities": "gpu=0"},
        {"per_worker_capabilities": "=1"},
        {"per_worker_capabilities": {"gpu": -5}},
        {"scheduler_address": "http://localhost:80"},
        {"scheduler_address": "tcp://localhost:70000"},
        {"scheduler_address": "ipc://"},
        {"scheduler_address": "ipc://" + "a" * 200},
        {"worker_manager_id": ""},
        {"worker_manager_id": "a\nb"},
        {"preload": "module:function(variable)"},
        {"mode": "sometimes"},
        {"logging_level": "LOUD"},
        {"event_loop": "trio"},
        {"nonsense": 1},
    ],
)
def test_rejects_values_out_of_range(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        worker_manager(**values)


@pytest.mark.parametrize("key", [item.name for item in dataclasses.fields(ProcessorSettings)])
def test_processor_settings_are_rejected_for_offloaded_tasks(key: str) -> None:
    offload: dict[str, object] = {
        "worker_manager_id": "m",
        "job_queue": "q",
        "job_definition": "d",
        "s3_bucket": "bucket",
    }
    elsewhere: list[tuple[type[WorkerManagerConfig], dict[str, object]]] = [
        (SymphonyConfig, {"worker_manager_id": "m", "service_name": "app"}),
        (AwsHpcConfig, offload),
    ]
    others = {bool: True, int: 7, float: 7.0, str: "other", tuple: ("numpy",)}
    for model, values in elsewhere:
        told = {"scheduler_address": ADDRESS, **values}
        default = describe(model)[key].default
        assert getattr(model_of(model, {**told, key: default}), key) == default
        with pytest.raises(ConfigError, match=f"{key} applies to workers' processors, which tasks of .* do not have"):
            model_of(model, {**told, key: others[type(default)]})


def test_capabilities_may_be_text_or_a_mapping() -> None:
    expected = {"linux": None, "gpu": 2.0}
    assert worker_manager(per_worker_capabilities="linux,gpu=2").per_worker_capabilities == expected
    assert worker_manager(per_worker_capabilities=expected).per_worker_capabilities == expected


def test_cluster_is_a_worker_manager_in_fixed_mode() -> None:
    manager = ClusterConfig(scheduler_address=ADDRESS, num_of_workers=3, task_timeout_seconds=7).as_worker_manager()
    assert isinstance(manager, BaremetalNativeConfig)
    assert (manager.mode, manager.max_task_concurrency, manager.task_timeout_seconds) == ("fixed", 3, 7)
    assert manager.worker_manager_id.startswith("cluster-")


def test_worker_document_round_trips() -> None:
    worker = worker_manager(per_worker_capabilities="linux,gpu=2").worker_config("unit-1", slots=4)
    assert WorkerConfig.from_environment({"SCALER_WORKER_CONFIG": worker.to_json()}) == worker


def test_key_rejects_a_document_of_another_version() -> None:
    document = json.loads(worker_manager().worker_config("unit-1", slots=4).to_json()) | {"surprise": 1}
    with pytest.raises(ConfigError, match=r"SCALER_WORKER_CONFIG: unknown key 'surprise': .* have different versions"):
        WorkerConfig.from_environment({"SCALER_WORKER_CONFIG": json.dumps(document)})


def test_worker_process_does_not_import_pydantic() -> None:
    code = "import sys; from scaler.config.worker import WorkerConfig; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
