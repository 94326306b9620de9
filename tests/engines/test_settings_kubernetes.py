"""Settings of the worker manager kubernetes, by what its pods, the API and a scheduler see of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.config.worker_managers import PROCESSOR_SETTINGS
from scaler.errors import UsageError
from scaler.interpreter import HASH_SEED_VARIABLE
from scaler.protocol.messages import ManagerDetails, ManagerStatus
from scaler.testing.kubernetes import KubernetesEmulator
from scaler.worker_manager.backend import BackendError
from scaler.worker_manager.kubernetes.backend import KubernetesBackend
from tests.engines.kubernetes_rig import StandInSite, backend_of, open_site
from tests.engines.test_settings_clouds import OF_THE_UNIT
from tests.integration.settings_rig import Command, has_uvloop, io_threads
from tests.integration.test_settings_workers import PlayedScheduler, on_a_played_scheduler
from tests.waiting import within


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInSite]:
    with open_site("stand-in", tmp_path, monkeypatch) as found:
        assert isinstance(found, StandInSite)
        yield found


def test_units_are_told_all_that_their_manager_was_told(
    standin: StandInSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HASH_SEED_VARIABLE, "7")
    values: dict[str, Any] = {
        "insecure_no_auth": True,
        "compression": "off",
        "object_storage_address": "tcp://127.0.0.1:3",
        "per_worker_capabilities": {"gpu": 2.0, "linux": None},
        "per_worker_task_queue_size": 7,
        "heartbeat_interval_seconds": 0.5,
        "task_timeout_seconds": 9.0,
        "death_timeout_seconds": 77.0,
        "preload": "os:getpid()",
        "io_threads": 2,
        "event_loop": "uvloop",
        "logging_level": "ERROR",
        "logging_format": "json",
        **dict.fromkeys(PROCESSOR_SETTINGS, 1),
        "hard_processor_suspend": True,
        "host_name": "one",
        "store_spill_directory": str(tmp_path),
        "requirements": ("numpy>=1,<3",),
    }
    of_this_machine = {"logging_paths": (str(tmp_path / "log"),), "logging_config_file": str(tmp_path / "log.json")}
    with backend_of(standin, worker_scheduler_address="tcp://192.0.2.1:2", **values, **of_this_machine) as backend:
        backend.start(1)
        [pod] = standin.objects("pods")
    variables = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    told = WorkerConfig.from_json(variables[WORKER_CONFIG_VARIABLE])
    expected = {**values, "worker_manager_id": "m", "scheduler_address": "tcp://192.0.2.1:2", "hash_seed": "7"}
    expected |= {"logging_paths": ("/dev/stdout",), "logging_config_file": None}
    assert {key: getattr(told, key) for key in expected} == expected
    keys = {item.name for item in dataclasses.fields(WorkerConfig)} - OF_THE_UNIT
    assert expected.keys() == keys, "no setting of workers is left out here"


def test_a_manager_says_who_it_is_and_runs_as_it_was_told(
    standin: StandInSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("KUBECONFIG", standin.config().k8s_kubeconfig or "")

    async def story(scheduler: PlayedScheduler, running: Command) -> None:
        await scheduler.until(lambda: scheduler.count(ManagerStatus) >= 5)
        (details,) = scheduler.managers.values()
        offers = {"linux": None, "gpu": 2.0}
        assert details == ManagerDetails("mine", "kubernetes", 4, 2, offers, False, 3 * 2**30)
        assert has_uvloop(running.pid)
        assert within(5, lambda: io_threads(running.pid) == 3)
        assert running.output() == ""
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        assert any(entry["message"].startswith("ready") for entry in entries)

    own = ("-wmi", "mine", "--num-of-workers", "3", "-pwc", "linux,gpu=2", "-his", "0.05", "-el", "uvloop", "-it", "3")
    size = ("--k8s-image", "emulated", "--k8s-slots", "2", "--k8s-memory", "3Gi")
    logging = ("-ll", "DEBUG", "--logging-format", "json", "-lp", str(log))
    flags = ("kubernetes", *own, *size, *logging, "--insecure-no-auth")
    on_a_played_scheduler(tmp_path, story, "scaler_worker_manager", *flags, is_local=False)


def test_the_cluster_is_that_of_the_file_the_context_and_the_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KubernetesEmulator(namespace="theirs") as emulator:
        path = emulator.kubeconfig(tmp_path / "config")
        document = json.loads(path.read_text())
        other = {"cluster": "nowhere", "user": "emulated", "namespace": "other"}
        document["clusters"].append({"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}})
        document["contexts"].append({"name": "far", "context": other})
        path.write_text(json.dumps({**document, "current-context": "far"}))
        site = StandInSite(emulator, tmp_path)
        with backend_of(site, k8s_kubeconfig=str(path), k8s_context="emulated") as backend:
            backend.start(1)
        assert len(emulator.pods()) == 1
        monkeypatch.setenv("KUBECONFIG", str(path))
        missing = {"k8s_kubeconfig": None, "k8s_context": "emulated", "k8s_namespace": "missing"}
        with (
            backend_of(site, **missing) as backend,
            pytest.raises(BackendError, match='namespaces "missing" not found'),
        ):
            backend.start(1)


def test_a_manager_has_as_many_pods_as_hold_the_wanted_workers(standin: StandInSite) -> None:
    for values, expected in (({"k8s_cpu": 4}, (4, 8, 2)), ({"k8s_slots": 3}, (3, 9, 3))):
        with backend_of(standin, max_task_concurrency=8, k8s_memory="1Gi", **values) as backend:
            capacity = backend.capacity
            assert (capacity.unit_slots, capacity.max_slots, capacity.max_units) == expected
            assert capacity.unit_memory_bytes == 2**30
            assert capacity.outlive_manager


def test_a_template_is_a_file_with_one_pod(standin: StandInSite, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("kind: Pod\nspec:\n  dnsPolicy: Default\n  containers: [{name: worker, image: theirs}]\n")
    with backend_of(standin, k8s_pod_template=str(template), k8s_image=None) as backend:
        backend.start(1)
    [pod] = standin.objects("pods")
    assert (pod["spec"]["dnsPolicy"], pod["spec"]["containers"][0]["image"]) == ("Default", "theirs")
    refused = {
        "kind: Job": "must be one YAML document of the kind Pod",
        "{": "cannot be read: ",
        "spec: [1]": "metadata and spec must be mappings",
        "spec: {containers: [{name: a}, {name: b}]}": "call the one for the worker 'worker'",
    }
    for text, error in refused.items():
        template.write_text(text)
        with pytest.raises(UsageError, match=error):
            KubernetesBackend(standin.config(k8s_pod_template=str(template)))


def test_a_priority_class_and_a_service_account_must_exist(standin: StandInSite) -> None:
    for key, value in (("k8s_priority_class", "low"), ("k8s_service_account", "reader")):
        with backend_of(standin, **{key: value}) as backend, pytest.raises(BackendError, match=f"{value}.* found"):
            backend.start(1)
    standin.emulator.priority_classes.add("low")
    standin.emulator.service_accounts.add("reader")
    with backend_of(standin, k8s_priority_class="low", k8s_service_account="reader") as backend:
        assert len(backend.start(1)) == 1
