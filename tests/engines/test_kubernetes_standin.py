"""The fake Kubernetes through the official client, whose models check every returned object."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes import client, config, watch

from scaler.testing.kubernetes import KubernetesEmulator
from tests.waiting import until

NAMESPACE = "default"


def pod(name: str, *command: str) -> client.V1Pod:
    container = client.V1Container(name="main", image="any", command=list(command))
    metadata = client.V1ObjectMeta(name=name, labels={"app": "test"})
    return client.V1Pod(metadata=metadata, spec=client.V1PodSpec(containers=[container], restart_policy="Never"))


def test_methods_and_models_of_the_official_client_work_with_the_fake(tmp_path: Path) -> None:
    with KubernetesEmulator() as emulator:
        core = client.CoreV1Api(config.new_client_from_config(str(emulator.kubeconfig(tmp_path / "kubeconfig"))))
        version = core.list_namespaced_pod(NAMESPACE, label_selector="app=test").metadata.resource_version
        assert core.create_namespaced_pod(NAMESPACE, pod("one", "sh", "-c", "exit 3")).status.phase == "Pending"
        core.create_namespaced_pod(NAMESPACE, pod("two", "sleep", "60"))
        with pytest.raises(client.ApiException) as refused:
            core.create_namespaced_pod(NAMESPACE, pod("two", "sleep", "60"))
        assert refused.value.status == 409
        told = watch.Watch()
        seen: dict[str, list[tuple[str, str]]] = {"one": [], "two": []}
        for event in told.stream(core.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=30):
            found = event["object"]
            seen[found.metadata.name].append((event["type"], found.status.phase))
            if seen["one"][-1:] == [("MODIFIED", "Failed")] and seen["two"][-1:] == [("MODIFIED", "Running")]:
                told.stop()
        for changes in seen.values():
            assert changes[0] == ("ADDED", "Pending")
        one, two = core.list_namespaced_pod(NAMESPACE, label_selector="app=test").items
        assert one.status.container_statuses[0].state.terminated.exit_code == 3
        assert two.spec.node_name == "node-1"
        core.create_namespaced_secret(
            NAMESPACE, client.V1Secret(metadata=client.V1ObjectMeta(name="s"), string_data={"a": "b"})
        )
        assert core.read_namespaced_secret("s", NAMESPACE).data == {"a": "Yg=="}
        deleting = core.delete_namespaced_pod("two", NAMESPACE)
        assert deleting.metadata.deletion_grace_period_seconds == 30
        until(lambda: emulator.pods() == ["one"])
        emulator.compact()
        with pytest.raises(client.ApiException) as gone:
            list(watch.Watch().stream(core.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=9))
        assert gone.value.status == 410
        core.api_client.close()
