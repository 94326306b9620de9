"""Pods as units: on the fake, and on a real cluster if KUBECONFIG names one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.protocol.messages import UnitState
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from scaler.testing.kubernetes import Error, KubernetesEmulator, LoseReply, Throttle
from scaler.worker_manager.backend import BackendError, Unit
from scaler.worker_manager.kubernetes import backend as backend_module
from scaler.worker_manager.kubernetes import pods
from scaler.worker_manager.kubernetes.backend import KubernetesBackend
from tests.engines.kubernetes_rig import FAILS, STUBBORN, Site, StandInSite, backend_of, open_site, states, until
from tests.waiting import until as eventually

BOTH_ATTEMPTS = 2
"""A request is made twice before its failure counts."""


@pytest.fixture(params=["stand-in", "cluster"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with open_site(request.param, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInSite]:
    with open_site("stand-in", tmp_path, monkeypatch) as found:
        assert isinstance(found, StandInSite)
        yield found


@pytest.fixture
def emulator(standin: StandInSite) -> KubernetesEmulator:
    return standin.emulator


def runs(units: list[Unit]) -> bool:
    return states(units) == ["running"]


def has_ended(units: list[Unit]) -> bool:
    return bool(units) and all(unit.state in (UnitState.STOPPED, UnitState.FAILED) for unit in units)


def ended_reason(site: Site, backend: KubernetesBackend) -> tuple[str, str]:
    [unit] = until(site, backend, has_ended)
    return unit.state.value, unit.reason


# -- on every cluster


def test_pods_run_exit_in_order_when_stopped_and_leave_nothing(site: Site) -> None:
    with backend_of(site) as backend:
        first, second = backend.start(2)
        until(site, backend, lambda units: states(units) == ["running", "running"])
        backend.stop([first])
        units = until(site, backend, lambda units: sorted(states(units)) == ["running", "stopped"])
        assert {unit.unit_id: unit.reason for unit in units} == {first: "stopped", second: ""}
        backend.stop([second])
        until(site, backend, lambda units: states(units) == ["stopped", "stopped"])
        eventually(lambda: backend.list() and not site.objects("pods"), site.wait_seconds)


def test_only_a_later_manager_of_the_same_name_adopts_the_pods(site: Site) -> None:
    with backend_of(site) as backend:
        started = backend.start(2)
        until(site, backend, lambda units: states(units) == ["running", "running"])
    with backend_of(site, worker_manager_id="other") as other:
        assert other.list() == []
    with backend_of(site) as later:
        assert {unit.unit_id for unit in later.list()} == set(started)
        later.stop(started)
        until(site, later, has_ended)


def test_failed_pod_reports_its_exit_code_and_last_log_line(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "WORKER_COMMAND", FAILS)
    with backend_of(site) as backend:
        backend.start(1)
        assert ended_reason(site, backend) == ("failed", "exit code 3; no scheduler there")


def test_unschedulable_pod_waits_with_the_schedulers_reason(site: Site, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("kind: Pod\nspec: {nodeSelector: {scaler/nowhere: 'yes'}}\n")
    with backend_of(site, k8s_pod_template=str(template)) as backend:
        backend.start(1)
        [unit] = until(site, backend, lambda units: states(units) == ["waiting"])
        assert unit.reason.startswith("Unschedulable: 0/")
        assert "node affinity/selector" in unit.reason
        backend.stop([unit.unit_id])
        assert ended_reason(site, backend) == ("stopped", "stopped")


def test_image_pull_failure_is_the_reason_of_an_unstarted_pod(site: Site) -> None:
    site.refuse_image("example.invalid/scaler-worker:1")
    with backend_of(site, k8s_image="example.invalid/scaler-worker:1") as backend:
        backend.start(1)
        [unit] = until(site, backend, lambda units: units[0].reason.startswith("ImagePullBackOff: "))
        assert unit.state is UnitState.PENDING
        backend.stop([unit.unit_id])
        until(site, backend, has_ended)


def test_quota_is_shown_as_the_reason_for_missing_pods(site: Site) -> None:
    site.set_quota({"pods": "1"})
    with backend_of(site) as backend:
        with pytest.raises(BackendError, match=r"quota in the namespace .*: exceeded quota: ") as first:
            backend.start(2)
        assert len(first.value.started) == 1
        assert "used" not in str(first.value), "the used amount changes, and would make every text differ"
        with pytest.raises(BackendError) as second:
            backend.start(1)
        assert str(second.value) == str(first.value), "equal texts count as the same failure"
        backend.stop(first.value.started)
        until(site, backend, has_ended)


def test_pod_that_ignores_sigterm_is_killed_after_its_grace_period(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "WORKER_COMMAND", STUBBORN)
    with backend_of(site, k8s_stop_seconds=1) as backend:
        [name] = backend.start(1)
        until(site, backend, runs)
        backend.stop([name])
        assert states(backend.list()) == ["stopping"]
        assert ended_reason(site, backend) == ("stopped", "stopped")


def test_worker_credential_is_in_a_secret_as_long_as_pods_exist(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "manager.credentials"
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    write_private(path, keys.add("manager", "manager").to_text(), replace=True)
    secret = load_credential(path).for_units().keys.secret
    with backend_of(site, credentials=str(path)) as backend:
        [name] = backend.start(1)
        [found] = site.objects("secrets")
        assert secret in base64.b64decode(found["data"]["credential"]).decode()
        [pod] = site.objects("pods")
        assert secret not in repr(pod)
        [variable] = [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "SCALER_CREDENTIAL"]
        assert variable["valueFrom"]["secretKeyRef"]["name"] == found["metadata"]["name"]
        until(site, backend, runs)
    assert site.objects("secrets"), "pods that outlive their manager may still need it"
    with backend_of(site, credentials=str(path)) as later:
        later.list()
        later.stop([name])
    assert site.objects("secrets") == []


# -- requests that fail


def test_pod_with_an_unanswered_creation_is_not_started_twice(
    standin: StandInSite, emulator: KubernetesEmulator
) -> None:
    emulator.faults.add("create pods", LoseReply(), times=BOTH_ATTEMPTS)
    with backend_of(standin) as backend:
        with pytest.raises(BackendError, match="cannot create pods: the cluster's API does not answer"):
            backend.start(1)
        [pod] = emulator.pods()
        assert backend.start(1) == [pod]
        until(standin, backend, runs)
        assert emulator.pods() == [pod]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            Error("Forbidden", 'pods is forbidden: User "ann" cannot create', 403),
            r"not allowed to create pods .*\(403\)",
        ),
        (Throttle(), r"the cluster's API is busy \(429\)"),
        (
            Error("Invalid", 'Pod "m-1" is invalid: spec', 422),
            r"cannot create pods in .* \(422 Invalid\): invalid: spec",
        ),
    ],
)
def test_refusal_is_the_text_of_the_error(
    fault: Error | Throttle, text: str, standin: StandInSite, emulator: KubernetesEmulator
) -> None:
    emulator.faults.add("create pods", fault)
    with backend_of(standin) as backend:
        with pytest.raises(BackendError, match=text):
            backend.start(1)
        assert len(backend.start(1)) == 1


def test_list_fails_while_the_api_is_unreachable_and_then_catches_up(
    standin: StandInSite, emulator: KubernetesEmulator
) -> None:
    with backend_of(standin) as backend:
        first, second = backend.start(2)
        until(standin, backend, lambda units: states(units) == ["running", "running"])
        emulator.is_away = True
        eventually(lambda: fails(backend, "cannot list pods: the cluster's API does not answer"))
        emulator.kill_container(first)
        emulator.is_away = False
        eventually(lambda: not fails(backend, ""))
        units = until(standin, backend, lambda units: sorted(states(units)) == ["failed", "running"])
        assert {unit.unit_id: unit.reason for unit in units} == {first: "exit code 137 (SIGKILL)", second: ""}


def test_expired_credentials_are_reread_from_the_file(standin: StandInSite, emulator: KubernetesEmulator) -> None:
    with backend_of(standin) as backend:
        backend.start(1)
        emulator.token = "another"
        eventually(lambda: fails(backend, "the cluster rejects these credentials (401)"))
        emulator.kubeconfig(Path(standin.config().k8s_kubeconfig or ""))
        eventually(lambda: not fails(backend, ""))
        until(standin, backend, runs)


def fails(backend: KubernetesBackend, text: str) -> bool:
    try:
        backend.list()
    except BackendError as error:
        return text in str(error)
    return False


def test_address_of_the_cluster_is_required(standin: StandInSite, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot determine the cluster's address .*missing"):
        KubernetesBackend(standin.config(k8s_kubeconfig=str(tmp_path / "missing")))
    with pytest.raises(UsageError, match="k8s_context = 'other'"):
        KubernetesBackend(standin.config(k8s_context="other"))
    with pytest.raises(UsageError, match=r"k8s_image is missing: .* docker build -f docker/worker.Dockerfile"):
        KubernetesBackend(standin.config(k8s_image=None))


def test_many_pods_are_listed_in_pages(
    standin: StandInSite, emulator: KubernetesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler.worker_manager.kubernetes.calls.PAGE_OBJECTS", 2)
    emulator.times.scheduling = 1000.0
    with backend_of(standin, max_task_concurrency=-1) as backend:
        started = backend.start(5)
    before = emulator.faults.calls()["list pods"]
    with backend_of(standin, max_task_concurrency=-1) as later:
        assert {unit.unit_id for unit in later.list()} == set(started)
        assert emulator.faults.calls()["list pods"] - before == 3


# -- events of pods


def test_pods_of_a_lost_node_are_given_up_and_removed(
    standin: StandInSite, emulator: KubernetesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "LOST_SECONDS", 0.1)
    with backend_of(standin, k8s_stop_seconds=0) as backend:
        backend.start(1)
        until(standin, backend, runs)
        emulator.lose_node("node-1")
        assert ended_reason(standin, backend) == ("failed", "NodeLost: the node node-1 does not answer")
        eventually(lambda: backend.list() and not emulator.pods())


def test_failed_pod_is_kept_for_its_log_while_its_unit_is_shown(
    standin: StandInSite, emulator: KubernetesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "WORKER_COMMAND", FAILS)
    with backend_of(standin) as backend:
        backend.start(1)
        until(standin, backend, has_ended)
        backend.list()
        assert len(emulator.pods("Failed")) == 1
        monkeypatch.setattr(backend_module, "ENDED_SHOWN_SECONDS", 0.0)
        backend.start(1)
        until(standin, backend, lambda units: states(units) == ["failed", "failed"])
        eventually(lambda: backend.list() and len(emulator.pods()) == 1)
    assert emulator.pods() == [], "no pod outlives the manager"


def test_template_deadline_sets_the_remaining_time_of_the_unit(standin: StandInSite, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {activeDeadlineSeconds: 1000}")
    with backend_of(standin, k8s_pod_template=str(template)) as backend:
        backend.start(1)
        [unit] = until(standin, backend, runs)
        assert 900 < unit.remaining_seconds <= 1000


def test_manager_exits_in_seconds_even_if_the_api_does_not_answer(
    standin: StandInSite, emulator: KubernetesEmulator, caplog: pytest.LogCaptureFixture
) -> None:
    with backend_of(standin) as backend:
        backend.start(1)
        until(standin, backend, runs)
        emulator.is_away = True
        eventually(lambda: fails(backend, "does not answer"))
    assert "pods or a secret may remain: cannot list pods" in caplog.text
    assert "kubectl --namespace default delete pods,secrets --selector scaler/owner=" in caplog.text
