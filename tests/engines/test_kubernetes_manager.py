"""Whole clusters whose workers are pods, which the fake runs as processes with scripted faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.supervisor import ReservedPorts
from scaler.testing.kubernetes import KubernetesEmulator
from tests.engines.burst_tasks import nap
from tests.engines.test_unit_credentials import Cluster, seen_by_a_task
from tests.integration.settings_rig import command
from tests.waiting import until, within

CONFIG = Path(__file__).resolve().parents[2] / "config/kubernetes.toml"
WAIT_SECONDS = 30.0


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesEmulator]:
    with KubernetesEmulator() as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path / "kubeconfig")))
        yield made
        assert made.pods("Running") == [], "nothing is left that costs money"


def test_scales_pods_from_zero_and_back_although_the_api_starts_late(
    tmp_path: Path, emulator: KubernetesEmulator
) -> None:
    emulator.is_away = True
    ports = ReservedPorts(4)
    scheduler_address, storage = (f"tcp://127.0.0.1:{ports.first + offset}" for offset in (0, 3))
    told = {
        "SCALER_OBJECT_STORAGE_SERVER_BIND_ADDRESS": storage,
        "SCALER_SCHEDULER_BIND_ADDRESS": scheduler_address,
        "SCALER_SCHEDULER_ADVERTISED_OBJECT_STORAGE_ADDRESS": storage,
        "SCALER_SCHEDULER_POLICY_ENGINE_TYPE": "target_v1",
        "SCALER_SCHEDULER_POLICY_CONTENT": "idle_seconds=1",  # idle pods cost nothing here
        "SCALER_WORKER_MANAGER_WORKER_SCHEDULER_ADDRESS": scheduler_address,
        "SCALER_WORKER_MANAGER_MAX_TASK_CONCURRENCY": "4",
        "SCALER_WORKER_MANAGER_HEARTBEAT_INTERVAL_SECONDS": "0.2",
        "SCALER_WORKER_MANAGER_K8S_CPU": "2",
    }
    with command("scaler", str(CONFIG), directory=tmp_path, **told) as everything:
        everything.addresses()
        said = "cannot list units: cannot list pods: the cluster's API does not answer"
        assert within(WAIT_SECONDS, lambda: said in everything.output()), everything.errors()
        with Client(scheduler_address) as client:
            futures = [client.submit(nap, number, 0.002) for number in range(500)]
            emulator.is_away = False
            assert [future.result(WAIT_SECONDS) for future in futures] == list(range(500))
            assert len(emulator.pods()) <= 2, "enough for the manager's workers, and none twice"
            until(lambda: not emulator.pods(), WAIT_SECONDS)
            assert client.submit(nap, 7).result(WAIT_SECONDS) == 7
        assert everything.stop() == 0
        ports.release()
    until(lambda: not emulator.pods(), WAIT_SECONDS)
    assert emulator.containers.running() == []


def test_restarted_manager_adopts_pods_and_removes_their_hidden_key(
    tmp_path: Path, emulator: KubernetesEmulator
) -> None:
    cluster = Cluster(tmp_path)
    cluster.credential("pods")
    flags = ("kubernetes", "--k8s-image", "emulated", "-his", "0.2")
    with cluster.running(), cluster.client() as client:
        first = cluster.manager("pods", *flags)
        try:
            assert client.submit(nap, 1).result(WAIT_SECONDS) == 1
            [pod] = emulator.pods("Running")
            first.process.kill()
            first.process.wait()
        finally:
            first.close()
        second = cluster.manager("pods", *flags)
        try:
            seen = client.submit(seen_by_a_task).result(WAIT_SECONDS)
            assert emulator.pods() == [pod], "the manager starts no other pod"
            secret = cluster.units_secret("pods")
            assert secret not in seen
            assert secret not in repr(emulator.objects("pods"))
            assert secret not in second.output() + emulator.output(pod)
            assert len(emulator.objects("secrets")) == 1
            assert second.stop() == 0
        finally:
            second.close()
        until(lambda: not emulator.pods(), WAIT_SECONDS)
        assert emulator.objects("secrets") == []
