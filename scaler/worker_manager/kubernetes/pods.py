"""The objects that a manager creates, and a unit's state according to its pod's container `worker`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.protocol.messages import UnitState
from scaler.worker.credential import CREDENTIAL_VARIABLE
from scaler.worker_manager import backend as frame
from scaler.worker_manager.backend import CONTAINER, ENDED, WORKER_COMMAND
from scaler.worker_manager.kubernetes import KubernetesConfig
from scaler.worker_manager.polled import SeenUnit

Fields = dict[str, Any]  # an API object
OWNER_LABEL = "scaler/owner"  # identifies an object's manager and scheduler
CREDENTIAL_KEY = "credential"
STOP_MARGIN_SECONDS = 5.0  # running tasks end this long before their pod, leaving the worker time to return results
NODE_LOST = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
"""Deletes pods of a dead node after 30 s instead of the default 300 s, because workers store no data."""
NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
MAX_SLUG_CHARACTERS = 40  # complete names fit into the 63 characters of a DNS label
_QUIET = ("ContainerCreating", "PodInitializing")  # waiting reasons of a normal start


@dataclass(frozen=True, slots=True)
class SeenPod(SeenUnit):
    """is_blocked: no pod of this kind could start, for example because an image or a secret is missing."""

    is_blocked: bool = False


def owner_of(config: KubernetesConfig) -> str:
    return frame.owner_digest(config, 32)


def slots_of(config: KubernetesConfig) -> int:
    return config.k8s_slots or max(1, int(config.k8s_cpu))


def slug_of(config: KubernetesConfig) -> str:
    slug = re.sub("[^a-z0-9]+", "-", config.worker_manager_id.lower())[:MAX_SLUG_CHARACTERS].strip("-")
    return slug or "scaler"


def secret_name(config: KubernetesConfig) -> str:
    return f"{slug_of(config)}-{owner_of(config)[:12]}"


def secret_of(config: KubernetesConfig, credential: str) -> Fields:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(config), **_marks(config)},
        "type": "Opaque",
        "stringData": {CREDENTIAL_KEY: credential},
    }


def pod_of(config: KubernetesConfig, template: Mapping[str, Any], name: str, *, has_credential: bool) -> Fields:
    """Return a unit's pod, from the template and the settings. Raises UsageError if no container is named `worker`."""
    pod = deepcopy(dict(template))
    marks = _marks(config)
    given = pod.get("metadata") or {}
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or [{"name": CONTAINER}]
    _set_container(frame.worker_container(containers, "k8s_pod_template"), config, name, has_credential=has_credential)
    spec |= {
        "containers": containers,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": config.k8s_stop_seconds,
        "enableServiceLinks": False,  # no environment variables for the namespace's services
        "tolerations": [*(spec.get("tolerations") or ()), *({"key": key, **NODE_LOST} for key in NODE_TAINTS)],
    }
    spec.setdefault("shareProcessNamespace", True)  # the pod's init process then reaps orphans of tasks
    spec.setdefault("automountServiceAccountToken", "serviceAccountName" in spec)
    labels = (given.get("labels") or {}) | marks["labels"]
    annotations = (given.get("annotations") or {}) | marks["annotations"]
    metadata = {**given, "name": name, "labels": labels, "annotations": annotations}
    metadata.pop("generateName", None)
    metadata.pop("namespace", None)  # k8s_namespace applies
    return {**pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def template_image(template: Mapping[str, Any]) -> str | None:
    containers = (template.get("spec") or {}).get("containers")
    return frame.worker_container(containers, "k8s_pod_template").get("image") if containers else None


def _set_container(container: Fields, config: KubernetesConfig, name: str, *, has_credential: bool) -> None:
    grace = config.k8s_stop_seconds - STOP_MARGIN_SECONDS
    document = frame.worker_document(config, slots_of(config), unit_id=name, stop_grace_seconds=grace)
    own: list[Fields] = [{"name": WORKER_CONFIG_VARIABLE, "value": document}]
    if has_credential:
        reference = {"name": secret_name(config), "key": CREDENTIAL_KEY}
        own.append({"name": CREDENTIAL_VARIABLE, "valueFrom": {"secretKeyRef": reference}})
    names = {variable["name"] for variable in own}
    others = [variable for variable in container.get("env") or () if variable.get("name") not in names]
    container |= {"name": CONTAINER, "command": list(WORKER_COMMAND), "env": [*others, *own]}
    container.pop("args", None)
    # The pod's status then contains the reason for a failure.
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    container.setdefault("securityContext", {"allowPrivilegeEscalation": False})
    if config.k8s_image is not None:
        container["image"] = config.k8s_image
    resources = container.get("resources") or {}
    gpus = {config.k8s_gpu_resource: str(config.k8s_gpus)} if config.k8s_gpus else {}
    requests = {"cpu": f"{config.k8s_cpu:g}", "memory": config.k8s_memory, **gpus}
    resources["requests"] = (resources.get("requests") or {}) | requests
    resources["limits"] = (resources.get("limits") or {}) | {"memory": config.k8s_memory, **gpus}
    container["resources"] = resources


def _marks(config: KubernetesConfig) -> dict[str, dict[str, str]]:
    labels = {
        "app.kubernetes.io/name": "scaler-worker",
        "app.kubernetes.io/managed-by": "scaler",
        "scaler/manager": slug_of(config),
        OWNER_LABEL: owner_of(config),
    }
    cluster = {"scaler/manager": config.worker_manager_id, "scaler/cluster": config.worker_scheduler_address}
    return {"labels": labels, "annotations": cluster}


def name_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def seen(pod: Mapping[str, Any], now: datetime, *, is_stopped: bool = False, is_deleted: bool = False) -> SeenPod:
    """Return a unit's state. is_stopped: by this manager. is_deleted: `pod` is the last state of a deleted pod.
    STOPPED: by this manager, or exit code 0. FAILED: also if the cluster removed the pod."""
    metadata, status, spec = pod["metadata"], pod.get("status") or {}, pod.get("spec") or {}
    state = _state(metadata, status, is_stopped=is_stopped, is_deleted=is_deleted)
    waiting = _container_state(status).get("waiting") or {}
    is_blocked = state is UnitState.PENDING and waiting.get("reason") not in (None, *_QUIET)
    is_gone = is_deleted or bool(metadata.get("deletionTimestamp"))
    if is_stopped and state in (UnitState.STOPPING, UnitState.STOPPED):
        reason = "stopped" if state is UnitState.STOPPED else ""
    else:
        reason = _reason(status, state, waiting, is_gone=is_gone)
    ended = (_container_state(status).get("terminated") or {}).get("finishedAt") if state in ENDED else None
    created = _time(metadata.get("creationTimestamp")) or now
    age = ((_time(ended) or now) - created).total_seconds()
    remaining, deadline = 0.0, spec.get("activeDeadlineSeconds")
    if deadline is not None and state not in ENDED:
        begun = _time(status.get("startTime")) or now
        remaining = max(0.001, deadline - (now - begun).total_seconds())
    return SeenPod(state, max(0.0, age), reason, remaining, is_blocked=is_blocked)


def _state(metadata: Fields, status: Fields, *, is_stopped: bool, is_deleted: bool) -> UnitState:
    terminated = _container_state(status).get("terminated")
    is_lost = status.get("reason") == "NodeLost"
    if is_deleted or is_lost or terminated is not None or status.get("phase") in ("Succeeded", "Failed"):
        is_taken = bool(_disruption(status)) or status.get("reason") in ("Evicted", "NodeLost")
        is_done = status.get("phase") == "Succeeded" or (terminated or {}).get("exitCode") == 0
        return UnitState.STOPPED if is_stopped or (is_done and not is_taken) else UnitState.FAILED
    if metadata.get("deletionTimestamp"):
        return UnitState.STOPPING
    if _container_state(status).get("running") is not None:
        return UnitState.RUNNING
    return UnitState.WAITING if _condition(status, "PodScheduled").get("status") == "False" else UnitState.PENDING


def _reason(status: Fields, state: UnitState, waiting: Fields, *, is_gone: bool) -> str:
    if state is UnitState.RUNNING:
        return ""
    if state is UnitState.WAITING:
        condition = _condition(status, "PodScheduled")
        return _said(condition.get("reason") or "Unschedulable", condition.get("message"))
    if state is UnitState.PENDING:
        return "" if waiting.get("reason") in _QUIET else _said(waiting.get("reason"), waiting.get("message"))
    disruption, parts = _disruption(status), []
    if status.get("reason"):
        parts.append(_said(status["reason"], status.get("message")))
    if disruption:
        parts.append(_said(disruption.get("reason"), disruption.get("message")))
    if terminated := _container_state(status).get("terminated"):
        own = terminated.get("reason")
        lines = [line.strip() for line in (terminated.get("message") or "").splitlines() if line.strip()]
        parts += [own] if own not in (None, "Error", "Completed") else []
        parts += [frame.exit_text(terminated.get("exitCode", 0)), *map(frame.short, lines[-1:])]
    for each in status.get("initContainerStatuses") or ():
        if code := ((each.get("state") or {}).get("terminated") or {}).get("exitCode"):
            parts.append(f"the init container {each.get('name')} failed: {frame.exit_text(code)}")
    return "; ".join(parts) or ("deleted, but not by this manager" if is_gone else "failed without a reason")


def _container_state(status: Fields) -> Fields:
    statuses = status.get("containerStatuses") or ()
    found: Fields = next((each for each in statuses if each.get("name") == CONTAINER), {})
    state: Fields = found.get("state") or {}
    return state


def _condition(status: Fields, kind: str) -> Fields:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _disruption(status: Fields) -> Fields:
    found = _condition(status, "DisruptionTarget")
    return found if found.get("status") == "True" else {}


def _said(reason: str | None, message: str | None) -> str:
    return ": ".join(frame.short(part).rstrip(".") for part in (reason, message) if part)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
