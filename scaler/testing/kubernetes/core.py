"""The state machine of the emulated cluster: pod admission, scheduling, and the kubelet's reports. Pure.

Invariants:
- Users change a pod until it has a node. After that, only the node's kubelet changes it.
- A deleted pod ends with its container: SIGTERM, then SIGKILL after the grace period. Grace 0 removes the pod at once.
- A lost node reports nothing more, and its pods stay until they are deleted without grace.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scaler.testing.kubernetes.objects import ApiRefusalError, Fields, ObjectStore, timestamp

DEFAULT_GRACE_SECONDS = 30
MESSAGE_BYTES = 2048
"""Length of the termination message, taken from the end of a container's log."""
_SIZES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_RESTS = ("Back-off", "ErrImagePull", "ImagePullBackOff")


@dataclass(slots=True)
class ClusterTimes:
    """Delays in seconds."""

    scheduling: float = 0.0
    """From the creation of a pod until it has a node."""
    pull: float = 0.0
    """From then until the container starts."""
    backoff: float = 0.05
    """Until a failed step is retried."""
    unreachable: float = 0.0
    """Time from the loss of a node to the deletion of its pods, capped at the pods' toleration."""
    watch: float = 600.0
    """Maximum duration of a watch."""


@dataclass(slots=True)
class ClusterNode:
    """A machine, with the resources that its pods may request."""

    name: str
    resources: dict[str, float] = field(default_factory=lambda: {"cpu": 1000.0, "memory": 2.0**42})
    labels: dict[str, str] = field(default_factory=dict)
    taint: str = ""
    """Key of a NoSchedule taint. Empty: none."""
    lost_at: float | None = None


@dataclass(frozen=True, slots=True)
class StartPod:
    """Start the command of a pod's container with these variables."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TerminatePod:
    """Send SIGTERM."""

    name: str


@dataclass(frozen=True, slots=True)
class KillPod:
    """Send SIGKILL."""

    name: str


ClusterCommand = StartPod | TerminatePod | KillPod


@dataclass(slots=True)
class _Run:
    """State of a pod in the kubelet that is not in the pod's status."""

    due: float
    is_running: bool = False
    kill_at: float | None = None
    is_terminated: bool = False
    is_killed: bool = False
    reason: str = ""
    """Reason for the container's end, if more specific than the exit code."""


class ClusterCore:
    """A namespace with pods, secrets, quotas, and events, on nodes."""

    def __init__(self, namespace: str, new_uid: Callable[[], str]) -> None:
        self.store = ObjectStore(namespace, new_uid)
        self.times = ClusterTimes()
        self.nodes = {"node-1": ClusterNode("node-1")}
        self.missing_images: dict[str, str] = {}
        """Registry messages by image that cannot be pulled."""
        self.service_accounts = {"default"}
        self.priority_classes: set[str] = set()
        self._runs: dict[str, _Run] = {}

    # -- user requests

    def create(self, plural: str, given: Fields, now: float) -> Fields:
        if plural != "pods":
            return self.store.create(plural, given, now)
        name = given["metadata"].get("name", "")
        self._admit(name, given["spec"])
        status = {"phase": "Pending", "conditions": []}
        made = self.store.create(plural, given | {"status": status}, now)
        self._runs[name] = _Run(now + self.times.scheduling)
        return made

    def delete(self, plural: str, name: str, grace: int | None, now: float) -> Fields:
        """Delete an object. Pods get their grace period. Raises ApiRefusalError."""
        found = self.store.get(plural, name)
        run = self._runs.get(name) if plural == "pods" else None
        if run is None or not (run.is_running or self._is_lost(found)) or grace == 0:
            return self.store.remove(plural, name)  # the next step kills a running container
        wanted = found["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS) if grace is None else grace
        if run.kill_at is not None and run.kill_at <= now + wanted:
            return found
        run.kill_at = now + wanted
        own = {"deletionTimestamp": timestamp(run.kill_at), "deletionGracePeriodSeconds": wanted}
        return self.store.update(plural, found | {"metadata": found["metadata"] | own})

    def _admit(self, name: str, spec: Fields) -> None:
        account, priority = spec.get("serviceAccountName", "default"), spec.get("priorityClassName")
        if account not in self.service_accounts:
            text = f'error looking up service account {account}: serviceaccount "{account}" not found'
            raise ApiRefusalError(403, "Forbidden", f'pods "{name}" is forbidden: {text}')
        if priority is not None and priority not in self.priority_classes:
            text = f"no PriorityClass with name {priority} was found"
            raise ApiRefusalError(403, "Forbidden", f'pods "{name}" is forbidden: {text}')
        requested = {"pods": 1.0, **{f"requests.{key}": value for key, value in requests_of(spec).items()}}
        alive = [pod for pod in self.store.all("pods") if pod["status"]["phase"] in ("Pending", "Running")]
        for quota in self.store.all("resourcequotas"):
            for key, limit in quota["spec"]["hard"].items():
                used = sum(1.0 if key == "pods" else requests_of(pod["spec"]).get(key[9:], 0.0) for pod in alive)
                if used + requested.get(key, 0.0) > amount(limit):
                    text = (
                        f"exceeded quota: {quota['metadata']['name']}, requested: {key}={requested[key]:g}, "
                        f"used: {key}={used:g}, limited: {key}={limit}"
                    )
                    raise ApiRefusalError(403, "Forbidden", f'pods "{name}" is forbidden: {text}')

    # -- pod lifecycle

    def step(self, now: float) -> list[ClusterCommand]:
        commands: list[ClusterCommand] = []
        for name, run in list(self._runs.items()):
            pod = self._pod(name)
            if pod is None:
                commands += [KillPod(name)] if run.is_running else []
                del self._runs[name]
            elif self._is_lost(pod):
                self._take(pod, now)
            elif run.is_running:
                commands += self._end(name, run, now)
            elif pod["status"]["phase"] == "Pending" and run.due <= now:
                commands += self._begin(pod, run, now)
        return commands

    def due(self) -> float | None:
        times = []
        for name, run in self._runs.items():
            pod = self._pod(name)
            if pod is None:
                continue
            if self._is_lost(pod):
                times += [] if "deletionTimestamp" in pod["metadata"] else [self._taken_at(pod)]
            elif run.is_running:
                times += [] if run.kill_at is None or run.is_killed else [run.kill_at]
            elif pod["status"]["phase"] == "Pending":
                times.append(run.due)
        return min(times, default=None)

    def started(self, name: str, now: float) -> None:
        self._runs[name].is_running = True
        self._report(name, {"running": {"startedAt": timestamp(now)}}, phase="Running", ready=True)

    def ended(self, name: str, code: int, log: str, now: float) -> None:
        run, pod = self._runs.get(name), self._pod(name)
        if run is not None:
            run.is_running = False
        if run is None or pod is None or self._is_lost(pod):
            return
        terminated: Fields = {"exitCode": code, "finishedAt": timestamp(now)}
        terminated["reason"] = run.reason or ("Completed" if code == 0 else "Error")
        if code and pod["spec"]["containers"][0].get("terminationMessagePolicy") == "FallbackToLogsOnError":
            terminated["message"] = log[-MESSAGE_BYTES:]
        self._report(name, {"terminated": terminated}, phase="Failed" if code else "Succeeded", ready=False)
        if "deletionTimestamp" in pod["metadata"]:
            self.store.remove("pods", name)

    # -- faults

    def note_reason(self, name: str, reason: str) -> None:
        self._runs[name].reason = reason

    def evict(self, name: str, message: str, now: float) -> list[ClusterCommand]:
        self.store.update("pods", self._with_status(name, phase="Failed", reason="Evicted", message=message))
        run = self._runs[name]
        run.kill_at, run.is_killed = now, True
        return [KillPod(name)]

    def disrupt(self, name: str, reason: str, message: str, now: float) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        pod = self.store.get("pods", name)
        self.store.update("pods", self._with_status(name, conditions=[*pod["status"]["conditions"], condition]))
        self.delete("pods", name, None, now)

    def lose_node(self, node: str, now: float) -> list[ClusterCommand]:
        self.nodes[node].lost_at = now
        return [KillPod(name) for name, run in self._runs.items() if run.is_running and self._node_of(name) == node]

    # -- the scheduler and the kubelet

    def _begin(self, pod: Fields, run: _Run, now: float) -> list[ClusterCommand]:
        name = pod["metadata"]["name"]
        if "nodeName" not in pod["spec"]:
            if not self._schedule(pod, now):
                run.due = now + self.times.backoff
                return []
            run.due = now + self.times.pull
            if run.due > now:
                return []
            pod = self.store.get("pods", name)
        container = pod["spec"]["containers"][0]
        image = container["image"]
        if image in self.missing_images:
            is_second = _waiting(pod).get("reason") in _RESTS
            reason = "ImagePullBackOff" if is_second else "ErrImagePull"
            message = f'Back-off pulling image "{image}"' if is_second else self.missing_images[image]
            return self._wait(name, run, reason, message, now)
        try:
            environment = {variable["name"]: self._value(variable) for variable in container.get("env") or ()}
        except ApiRefusalError as failure:
            return self._wait(name, run, "CreateContainerConfigError", failure.message, now)
        command = [*(container.get("command") or ()), *(container.get("args") or ())]
        run.due = float("inf")
        return [StartPod(name, tuple(command), environment)]

    def _end(self, name: str, run: _Run, now: float) -> list[ClusterCommand]:
        if run.kill_at is None or run.is_killed:
            return []
        if now >= run.kill_at:
            run.is_killed = True
            return [KillPod(name)]
        if run.is_terminated:
            return []
        run.is_terminated = True
        return [TerminatePod(name)]

    def _schedule(self, pod: Fields, now: float) -> bool:
        name, spec = pod["metadata"]["name"], pod["spec"]
        wanted, reasons = requests_of(spec), []
        tolerated = [each.get("key") for each in spec.get("tolerations") or ()]
        for node in self.nodes.values():
            on_it = [each["spec"] for each in self.store.all("pods") if self._uses(each, node.name)]
            free = {
                key: node.resources.get(key, 0.0) - sum(requests_of(s).get(key, 0.0) for s in on_it) for key in wanted
            }
            short = [key for key, value in wanted.items() if value > free[key]]
            if node.lost_at is not None:
                reasons.append("node(s) had untolerated taint {node.kubernetes.io/unreachable: }")
            elif not (spec.get("nodeSelector") or {}).items() <= node.labels.items():
                reasons.append("node(s) didn't match Pod's node affinity/selector")
            elif node.taint and node.taint not in tolerated and None not in tolerated:
                reasons.append(f"node(s) had untolerated taint {{{node.taint}: }}")
            elif short:
                reasons.append(f"Insufficient {short[0]}")
            else:
                pod["spec"]["nodeName"] = node.name
                condition = {"type": "PodScheduled", "status": "True"}
                waiting = _container_status(pod, {"waiting": {"reason": "ContainerCreating"}}, ready=False)
                status = {"conditions": [condition], "startTime": timestamp(now), "containerStatuses": [waiting]}
                self.store.update("pods", pod | {"status": pod["status"] | status})
                return True
        text = f"0/{len(self.nodes)} nodes are available: {', '.join(f'1 {reason}' for reason in reasons)}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
        if pod["status"]["conditions"] != [condition]:
            self.store.update("pods", self._with_status(name, conditions=[condition]))
        return False

    def _take(self, pod: Fields, now: float) -> None:
        if "deletionTimestamp" not in pod["metadata"] and now >= self._taken_at(pod):
            text = "Taint manager: deleting due to NoExecute taint"
            self.disrupt(pod["metadata"]["name"], "DeletionByTaintManager", text, now)

    def _taken_at(self, pod: Fields) -> float:
        lost_at = self.nodes[pod["spec"]["nodeName"]].lost_at or 0.0
        tolerated = [float(each.get("tolerationSeconds", 300)) for each in pod["spec"].get("tolerations") or ()]
        return lost_at + min([self.times.unreachable, *tolerated])

    def _wait(self, name: str, run: _Run, reason: str, message: str, now: float) -> list[ClusterCommand]:
        run.due = now + self.times.backoff
        if _waiting(self.store.get("pods", name)) != {"reason": reason, "message": message}:
            self._report(name, {"waiting": {"reason": reason, "message": message}}, phase="Pending", ready=False)
        return []

    def _report(self, name: str, state: Fields, *, phase: str, ready: bool) -> None:
        pod = self.store.get("pods", name)
        container = _container_status(pod, state, ready=ready)
        # An evicted pod stays Failed.
        changed = {"containerStatuses": [container]} | ({} if "reason" in pod["status"] else {"phase": phase})
        self.store.update("pods", self._with_status(name, **changed))

    def _with_status(self, name: str, **changed: Any) -> Fields:
        pod = self.store.get("pods", name)
        return pod | {"status": pod["status"] | changed}

    def _value(self, variable: Fields) -> str:
        if "valueFrom" not in variable:
            return str(variable.get("value", ""))
        reference = variable["valueFrom"]["secretKeyRef"]
        data = self.store.get("secrets", reference["name"])["data"]
        if reference["key"] not in data:
            raise ApiRefusalError(
                404, "NotFound", f"couldn't find key {reference['key']} in Secret {reference['name']}"
            )
        return base64.b64decode(data[reference["key"]]).decode()

    def _pod(self, name: str) -> Fields | None:
        try:
            return self.store.get("pods", name)
        except ApiRefusalError:
            return None

    def _uses(self, pod: Fields, node: str) -> bool:
        return pod["spec"].get("nodeName") == node and pod["status"]["phase"] in ("Pending", "Running")

    def _node_of(self, name: str) -> str | None:
        node: str | None = self.store.get("pods", name)["spec"].get("nodeName")
        return node

    def _is_lost(self, pod: Fields) -> bool:
        node = self.nodes.get(pod["spec"].get("nodeName", "")) if "spec" in pod else None
        return node is not None and node.lost_at is not None


def amount(quantity: str | float) -> float:
    text = str(quantity)
    unit = next((each for each in sorted(_SIZES, key=len, reverse=True) if text.endswith(each)), "")
    return float(text.removesuffix(unit)) * _SIZES.get(unit, 1.0)


def requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    total: dict[str, float] = {}
    for container in spec["containers"]:
        for key, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            total[key] = total.get(key, 0.0) + amount(quantity)
    return total


def _container_status(pod: Fields, state: Fields, *, ready: bool) -> Fields:
    container = pod["spec"]["containers"][0]
    status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
    return {**status, "ready": ready, "state": state}


def _waiting(pod: Fields) -> Fields:
    statuses = pod["status"].get("containerStatuses") or [{}]
    found: Fields = (statuses[0].get("state") or {}).get("waiting") or {}
    return found
