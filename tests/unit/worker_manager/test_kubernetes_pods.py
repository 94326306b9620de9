"""The pod built from the settings, and the unit state in a described pod."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from scaler.config.load import model_of
from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.errors import ConfigError, UsageError
from scaler.protocol.messages import UnitState
from scaler.worker_manager.kubernetes import KubernetesConfig
from scaler.worker_manager.kubernetes.pods import (
    OWNER_LABEL,
    Fields,
    owner_of,
    pod_of,
    secret_name,
    secret_of,
    seen,
    slots_of,
    slug_of,
    template_image,
)

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def config(**values: Any) -> KubernetesConfig:
    given = {"scheduler_address": "tcp://192.0.2.1:1", "worker_manager_id": "burst", "k8s_image": "own:1"}
    return model_of(KubernetesConfig, {**given, "max_task_concurrency": 8, **values})


def pod(template: Fields | None = None, *, has_credential: bool = False, **values: Any) -> Fields:
    return pod_of(config(**values), template or {}, "burst-1", has_credential=has_credential)


def worker(found: Fields) -> Fields:
    [container] = [each for each in found["spec"]["containers"] if each["name"] == "worker"]
    return dict(container)


# -- pods from settings


def test_pod_matches_the_settings() -> None:
    found = pod(
        k8s_image="registry.example/scaler:7",
        k8s_cpu=1.5,
        k8s_memory="3Gi",
        k8s_gpus=2,
        k8s_gpu_resource="amd.com/gpu",
        k8s_stop_seconds=45,
    )
    spec, container = found["spec"], worker(found)
    assert container["image"] == "registry.example/scaler:7"
    assert container["resources"] == {
        "requests": {"cpu": "1.5", "memory": "3Gi", "amd.com/gpu": "2"},
        "limits": {"memory": "3Gi", "amd.com/gpu": "2"},
    }
    assert (spec["terminationGracePeriodSeconds"], spec["restartPolicy"]) == (45, "Never")


def test_worker_in_a_pod_gets_its_document_and_offers_the_pods_gpus() -> None:
    found = pod(k8s_cpu=2.9, k8s_gpus=2, k8s_stop_seconds=45, logging_paths=["/here"])
    [variable] = worker(found)["env"]
    assert variable["name"] == WORKER_CONFIG_VARIABLE
    document = WorkerConfig.from_json(variable["value"])
    assert (document.unit_id, document.slots, document.stop_grace_seconds) == ("burst-1", 2, 40.0)
    assert document.per_worker_capabilities == {"gpu": 2.0}
    assert document.logging_paths == ("/dev/stdout",), "files of the manager's machine are none of a container's"
    assert config(k8s_gpus=2, per_worker_capabilities={"gpu": 1.0}).per_worker_capabilities == {"gpu": 1.0}
    assert (slots_of(config(k8s_cpu=0.5)), slots_of(config(k8s_cpu=0.5, k8s_slots=3))) == (1, 3)


def test_pod_gets_an_api_token_only_with_a_service_account() -> None:
    assert pod()["spec"]["automountServiceAccountToken"] is False
    assert pod({"spec": {"serviceAccountName": "reader"}})["spec"]["automountServiceAccountToken"] is True


def test_pod_leaves_a_lost_node_sooner_than_by_default() -> None:
    lost = [each for each in pod()["spec"]["tolerations"] if "tolerationSeconds" in each]
    assert {each["key"] for each in lost} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert {each["tolerationSeconds"] for each in lost} == {30}


def test_credential_is_in_the_secret_and_the_pod_has_only_its_name() -> None:
    found = pod(has_credential=True)
    variable = worker(found)["env"][-1]
    name = secret_name(config())
    reference = {"secretKeyRef": {"name": name, "key": "credential"}}
    assert variable == {"name": "SCALER_CREDENTIAL", "valueFrom": reference}
    secret = secret_of(config(), "the text")
    assert (secret["metadata"]["name"], secret["stringData"]) == (name, {"credential": "the text"})
    assert secret["metadata"]["labels"][OWNER_LABEL] == found["metadata"]["labels"][OWNER_LABEL]


def test_settings_are_merged_into_a_template() -> None:
    template: Fields = {
        "metadata": {"generateName": "x-", "namespace": "y", "labels": {"team": "blue", OWNER_LABEL: "other"}},
        "spec": {
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {
                    "name": "worker",
                    "image": "theirs:1",
                    "args": ["--x"],
                    "env": [{"name": "A", "value": "1"}, {"name": WORKER_CONFIG_VARIABLE, "value": "old"}],
                    "resources": {"limits": {"cpu": "2"}},
                    "securityContext": {"runAsUser": 7},
                },
            ],
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"disk": "ssd"},
            "volumes": [{"name": "data", "emptyDir": {}}],
            "restartPolicy": "Always",
        },
    }
    before = json.dumps(template)
    found = pod(template, k8s_image=None)
    container, spec = worker(found), found["spec"]
    assert template_image(template) == container["image"] == "theirs:1"
    assert [each["name"] for each in spec["containers"]] == ["proxy", "worker"]
    assert [each["name"] for each in container["env"]] == ["A", WORKER_CONFIG_VARIABLE]
    assert container["env"][1]["value"] != "old"
    assert "args" not in container
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
    assert container["securityContext"] == {"runAsUser": 7}
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert found["metadata"]["labels"]["team"] == "blue"
    assert spec["tolerations"][0] == {"operator": "Exists"}
    assert (spec["volumes"], spec["restartPolicy"]) == ([{"name": "data", "emptyDir": {}}], "Never")
    assert found["metadata"].keys() == {"name", "labels", "annotations"}
    assert found["metadata"]["labels"][OWNER_LABEL] == owner_of(config())
    assert json.dumps(template) == before, "every unit begins with the same template"
    with pytest.raises(UsageError, match="has the containers a, b: name the worker's container 'worker'"):
        pod({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})


@pytest.mark.parametrize("name", ["Team A: burst_1", "x" * 200, "---", "Ünï"])
def test_names_and_labels_are_valid_for_the_api(name: str) -> None:
    made = config(worker_manager_id=name)
    assert len(f"{slug_of(made)}-{'0' * 12}") <= 63
    assert slug_of(made).strip("-") == slug_of(made) != ""
    assert pod(worker_manager_id=name)["metadata"]["annotations"]["scaler/manager"] == name


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("k8s_memory", "4 GB", "must be a Kubernetes quantity such as 512Mi, 4Gi, or 2G, not '4 GB'"),
        ("k8s_memory", "0", "must be more than 0"),
        ("k8s_stop_seconds", 5, "greater than or equal to 10"),
        ("k8s_cpu", 0, "greater than 0"),
    ],
)
def test_rejects_a_value_that_kubernetes_does_not_accept(key: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("'", ".")):
        config(**{key: value})


# -- states from descriptions


def described(
    state: Fields | None = None, phase: str = "Running", *, metadata: Fields | None = None, **status: Any
) -> Fields:
    statuses = [{"name": "proxy", "state": {"running": {}}}, {"name": "worker", "state": state or {}}]
    return {
        "metadata": {"name": "burst-1", "creationTimestamp": "2026-01-01T12:00:00Z", **(metadata or {})},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def terminated(code: int, reason: str = "Error", message: str = "") -> Fields:
    ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-01T12:00:10Z"}
    return {"terminated": ended}


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "higher."}]
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes."}]
DELETED = {"deletionTimestamp": "2026-01-01T12:01:00Z", "deletionGracePeriodSeconds": 60}


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        ({"metadata": {"name": "a"}}, UnitState.PENDING, ""),
        (described(phase="Pending", conditions=UNSCHEDULABLE), UnitState.WAITING, "Unschedulable: 0/1 nodes"),
        (described({"waiting": {"reason": "ContainerCreating"}}, "Pending"), UnitState.PENDING, ""),
        (
            described({"waiting": {"reason": "ErrImagePull", "message": "not\nfound"}}, "Pending"),
            UnitState.PENDING,
            "ErrImagePull: not found",
        ),
        (described({"running": {}}), UnitState.RUNNING, ""),
        (described({"running": {}}, metadata=DELETED), UnitState.STOPPING, "deleted, but not by this manager"),
        (described(terminated(0, "Completed"), "Succeeded"), UnitState.STOPPED, "exit code 0"),
        (described(terminated(0, "Completed")), UnitState.STOPPED, "exit code 0"),
        (described(terminated(1, message="a\n last \n\n"), "Failed"), UnitState.FAILED, "exit code 1; last"),
        (described(terminated(137, "OOMKilled"), "Failed"), UnitState.FAILED, "OOMKilled; exit code 137 (SIGKILL)"),
        (
            described(phase="Failed", reason="Evicted", message="low on memory. "),
            UnitState.FAILED,
            "Evicted: low on memory",
        ),
        (
            described(terminated(0, "Completed"), "Succeeded", conditions=DISRUPTED),
            UnitState.FAILED,
            "PreemptionByScheduler: higher; exit code 0",
        ),
        (
            described({"running": {}}, metadata=DELETED, reason="NodeLost", message="unresponsive"),
            UnitState.FAILED,
            "NodeLost: unresponsive",
        ),
    ],
)
def test_pod_status_maps_to_a_unit_state_and_reason(found: Fields, state: UnitState, reason: str) -> None:
    now = seen(found, NOW)
    assert (now.state, now.reason) == (state, reason)


def test_pod_stopped_by_this_manager_counts_as_an_orderly_exit() -> None:
    for found in (described(terminated(137), "Failed"), described(terminated(0), "Succeeded", conditions=DISRUPTED)):
        ended = seen(found, NOW, is_stopped=True)
        assert (ended.state, ended.reason) == (UnitState.STOPPED, "stopped")
