"""Settings of the kubernetes worker manager, as seen by its pods, the API, and a scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.testing.kubernetes import KubernetesEmulator
from scaler.worker_manager.backend import BackendError
from scaler.worker_manager.kubernetes.backend import KubernetesBackend
from tests.engines.kubernetes_rig import StandInSite, backend_of, open_site


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInSite]:
    with open_site("stand-in", tmp_path, monkeypatch) as found:
        assert isinstance(found, StandInSite)
        yield found


def test_cluster_comes_from_file_context_and_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_template_is_a_file_with_one_pod(standin: StandInSite, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("kind: Pod\nspec:\n  dnsPolicy: Default\n  containers: [{name: worker, image: theirs}]\n")
    with backend_of(standin, k8s_pod_template=str(template), k8s_image=None) as backend:
        backend.start(1)
    [pod] = standin.objects("pods")
    assert (pod["spec"]["dnsPolicy"], pod["spec"]["containers"][0]["image"]) == ("Default", "theirs")
    refused = {
        "kind: Job": "must be a single YAML document of kind Pod",
        "{": "cannot be read: ",
        "spec: [1]": "metadata and spec must be mappings",
        "spec: {containers: [{name: a}, {name: b}]}": "name the worker's container 'worker'",
    }
    for text, error in refused.items():
        template.write_text(text)
        with pytest.raises(UsageError, match=error):
            KubernetesBackend(standin.config(k8s_pod_template=str(template)))


def test_priority_class_and_service_account_must_exist(standin: StandInSite, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"

    def names(spec: str) -> str:
        template.write_text(f"kind: Pod\nspec: {{{spec}}}\n")
        return str(template)

    both = "priorityClassName: low, serviceAccountName: reader"
    for spec in both.split(", "):
        value = spec.split()[1]
        with (
            backend_of(standin, k8s_pod_template=names(spec)) as backend,
            pytest.raises(BackendError, match=f"{value}.* found"),
        ):
            backend.start(1)
    standin.emulator.priority_classes.add("low")
    standin.emulator.service_accounts.add("reader")
    with backend_of(standin, k8s_pod_template=names(both)) as backend:
        assert len(backend.start(1)) == 1
