"""Clusters for tests of the kubernetes worker manager: a fake, and a real one if KUBECONFIG names it.

The real cluster is accessed through the official client. Its pods run `sh` in the image SCALER_TEST_KUBERNETES_IMAGE.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from scaler.testing.kubernetes import KubernetesEmulator
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.kubernetes import KubernetesConfig, pods
from scaler.worker_manager.kubernetes.backend import KubernetesBackend
from scaler.worker_manager.kubernetes.pods import OWNER_LABEL, Fields, owner_of
from tests.waiting import within

WAIT_SECONDS = 30.0
REAL_WAIT_SECONDS = 180.0
WAITS = ("sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait")
"""Command for a pod that exits on SIGTERM."""
STUBBORN = ("sh", "-c", "trap '' TERM; while true; do sleep 0.1; done")
FAILS = ("sh", "-c", "echo first; echo 'no scheduler there' >&2; exit 3")


class Site(Protocol):
    """A cluster, behind the interface that all cluster tests share."""

    wait_seconds: float

    def config(self, **values: Any) -> KubernetesConfig:
        """Return the settings of a manager for this cluster. Each site has its own manager."""

    def objects(self, plural: str) -> list[Fields]:
        """Return the pods or secrets of the site's manager."""

    def set_quota(self, hard: dict[str, str]) -> None:
        """Set a quota for the namespace until the test ends."""

    def refuse_image(self, image: str) -> None:
        """Ensure that this image cannot be pulled."""


class StandInSite:
    """The fake cluster."""

    wait_seconds = WAIT_SECONDS

    def __init__(self, emulator: KubernetesEmulator, folder: Path) -> None:
        self.emulator = emulator
        emulator.times.watch = 0.02
        self._kubeconfig = str(emulator.kubeconfig(folder / "kubeconfig"))

    def config(self, **values: Any) -> KubernetesConfig:
        given: dict[str, Any] = {"worker_manager_id": "m", "max_task_concurrency": 8, "k8s_image": "emulated"}
        given |= {"heartbeat_interval_seconds": 0.01, **values}
        return KubernetesConfig(
            **{"scheduler_address": "tcp://192.0.2.1:1", "k8s_kubeconfig": self._kubeconfig, **given}
        )

    def objects(self, plural: str) -> list[Fields]:
        return self.emulator.objects(plural)

    def set_quota(self, hard: dict[str, str]) -> None:
        self.emulator.create("resourcequotas", "limit", spec={"hard": hard})

    def refuse_image(self, image: str) -> None:
        self.emulator.missing_images[image] = f'failed to pull image "{image}": not found'


class RealSite:
    """The cluster from KUBECONFIG, with the namespace of its context."""

    wait_seconds = REAL_WAIT_SECONDS

    def __init__(self, kubeconfig: str) -> None:
        from kubernetes import client, config  # noqa: PLC0415 (the import takes seconds)

        self._kubeconfig = kubeconfig
        self._core = client.CoreV1Api(config.new_client_from_config(kubeconfig))
        _, active = config.list_kube_config_contexts(kubeconfig)
        self._namespace = active["context"].get("namespace") or "default"
        self._id = f"test-{uuid.uuid4().hex[:8]}"
        self._quota = ""

    def config(self, **values: Any) -> KubernetesConfig:
        image = os.environ.get("SCALER_TEST_KUBERNETES_IMAGE", "busybox:stable")
        given: dict[str, Any] = {"worker_manager_id": self._id, "max_task_concurrency": 8, "k8s_image": image}
        given |= {
            "heartbeat_interval_seconds": 0.01,
            "k8s_cpu": 0.05,
            "k8s_memory": "64Mi",
            "k8s_slots": 1,
            "k8s_kubeconfig": self._kubeconfig,
            **values,
        }
        return KubernetesConfig(**{"scheduler_address": "tcp://192.0.2.1:1", **given})

    def objects(self, plural: str) -> list[Fields]:
        listed = getattr(self._core, f"list_namespaced_{plural.removesuffix('s')}")
        found = listed(self._namespace, label_selector=f"{OWNER_LABEL}={owner_of(self.config())}").items
        return [self._core.api_client.sanitize_for_serialization(each) for each in found]

    def set_quota(self, hard: dict[str, str]) -> None:
        self._quota = self._id
        body = {"metadata": {"name": self._id}, "spec": {"hard": hard}}
        self._core.create_namespaced_resource_quota(self._namespace, body)

    def refuse_image(self, image: str) -> None:
        """Do nothing: the image is in `example.invalid`, which no network resolves."""

    def close(self) -> None:
        for pod in self.objects("pods"):
            self._core.delete_namespaced_pod(pod["metadata"]["name"], self._namespace, grace_period_seconds=0)
        if self._quota:
            self._core.delete_namespaced_resource_quota(self._quota, self._namespace)


@contextmanager
def open_site(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a cluster. kind: `stand-in`, or `cluster` for the one in KUBECONFIG."""
    monkeypatch.setattr(pods, "WORKER_COMMAND", WAITS)
    with ExitStack() as closing:
        if kind == "stand-in":
            yield StandInSite(closing.enter_context(KubernetesEmulator()), folder)
            return
        kubeconfig = os.environ.get("KUBECONFIG")
        if not kubeconfig:
            pytest.skip("NOT TESTED against a real cluster: KUBECONFIG names none")
        site = RealSite(kubeconfig)
        closing.callback(site.close)
        yield site


@contextmanager
def backend_of(site: Site, **values: Any) -> Iterator[KubernetesBackend]:
    """Yield a backend and close it, keeping its pods."""
    backend = KubernetesBackend(site.config(**values))
    try:
        yield backend
    finally:
        backend.close()


def until(site: Site, backend: KubernetesBackend, fits: Callable[[list[Unit]], bool]) -> list[Unit]:
    """List units until they match."""
    units: list[Unit] = []

    def listed() -> bool:
        units[:] = backend.list()
        return fits(units)

    assert within(site.wait_seconds, listed, 0.02), units
    return units


def states(units: list[Unit]) -> list[str]:
    """Return the states of units, ordered by name."""
    return [unit.state.value for unit in sorted(units, key=lambda unit: unit.unit_id)]
