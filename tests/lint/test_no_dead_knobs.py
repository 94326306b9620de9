"""Every setting has an effect: code outside the configuration reads it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import scaler
from scaler.config.clusters import LauncherConfig
from scaler.config.monitors import TopConfig, WebUiConfig
from scaler.config.servers import ObjectStorageServerConfig, scheduler_model
from scaler.config.setting import describe
from scaler.config.worker import WorkerConfig
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig
from scaler.extensions.http.settings import HttpConfig
from scaler.worker_manager.aws import InstallingSettings
from scaler.worker_manager.aws_ec2 import AwsEc2Config
from scaler.worker_manager.aws_hpc import AwsHpcConfig
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager.kubernetes import KubernetesConfig
from scaler.worker_manager.orb_aws_ec2 import OrbAwsEc2Config
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.ssh import SshConfig
from scaler.worker_manager.symphony import SymphonyConfig

PACKAGE = Path(scaler.__file__).parent

LOGGING = ("component.py", "logs.py")
SECURITY = "net/server_access.py"
MANAGER = ("worker_manager/", "cluster/", SECURITY)
READERS: dict[type, tuple[str, ...]] = {
    ObjectStorageServerConfig: ("object_storage/", SECURITY, *LOGGING),
    scheduler_model(): ("scheduler/", "extensions/", "object_storage/server.py", SECURITY, *LOGGING),
    BaremetalNativeConfig: MANAGER,
    AwsRawEcsConfig: ("worker_manager/aws_raw_ecs/",),
    AwsHpcConfig: ("worker_manager/aws_hpc/",),
    SshConfig: ("worker_manager/ssh/",),
    KubernetesConfig: ("worker_manager/kubernetes/",),
    AwsEc2Config: ("worker_manager/aws_ec2/",),
    OrbAwsEc2Config: ("worker_manager/orb_aws_ec2/",),
    SlurmConfig: ("worker_manager/slurm/",),
    SymphonyConfig: ("worker_manager/symphony/",),
    WorkerConfig: ("worker/", "extensions/", *LOGGING),
    LauncherConfig: ("cluster/",),
    WebUiConfig: ("monitor/web/", SECURITY, *LOGGING),
    TopConfig: ("monitor/commands.py", SECURITY),
    HttpConfig: ("extensions/http/", "monitor/web/", SECURITY, *LOGGING),
}
"""Where a model's settings take effect. Reads elsewhere do not count."""

OF_THE_WORKER = frozenset(item.name for item in dataclasses.fields(WorkerConfig)) | {"worker_scheduler_address"}
"""A manager's settings that take effect in its workers: `WorkerConfig.of` passes them on."""
OF_EVERY_MANAGER = frozenset(describe(WorkerManagerConfig))
OF_EVERY_SERVICE = frozenset(describe(InstallingSettings))
"""Read by AWS clients, which accept several kinds of settings as a configuration."""
ONLY_CHOICE = {"backend", "mode"}
"""Settings with only one value so far: any other is rejected."""
FOLDED = {"num_of_workers"}
"""Settings of a cluster that `as_worker_manager` turns into a worker manager's settings."""


def reads_in(text: str) -> set[str]:
    """Return the names of the attributes read from anything called a config."""
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_config(node.value)
    }


def is_config(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "config" in name or name.endswith("context")  # the part of a configuration that a batch needs
        case _:
            return False


def reads_of(places: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for place in places:
        path = PACKAGE / place
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            found |= reads_in(file.read_text())
    return found


def settings_of(model: type) -> set[str]:
    assert dataclasses.is_dataclass(model)
    return {item.name for item in dataclasses.fields(model)}


@pytest.mark.parametrize("model", READERS, ids=lambda model: model.__name__)
def test_every_setting_is_read_where_it_has_its_effect(model: type) -> None:
    settings = settings_of(model)
    if model is BaremetalNativeConfig:
        settings -= OF_THE_WORKER - {"scheduler_address", "worker_manager_id"}
    if issubclass(model, WorkerManagerConfig) and model is not BaremetalNativeConfig:
        settings -= OF_EVERY_MANAGER - {"max_task_concurrency"} | OF_EVERY_SERVICE | ONLY_CHOICE
    assert settings - reads_of(READERS[model]) == set()


def test_cluster_accepts_the_settings_of_a_worker_manager() -> None:
    assert settings_of(ClusterConfig) - settings_of(BaremetalNativeConfig) == FOLDED


def test_search_finds_only_reads_of_configurations() -> None:
    text = "self._config.a + config.b; other.c; config.d = 1; worker_config.e.f"
    assert reads_in(text) == {"a", "b", "e"}
