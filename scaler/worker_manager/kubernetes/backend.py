"""The backend of the type kubernetes. A unit's id is its pod's name, so no unit starts twice after a lost answer."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import yaml

from scaler.errors import ConfigError, UsageError
from scaler.paths import local_path
from scaler.protocol.messages import UnitState
from scaler.worker_manager import backend as frame
from scaler.worker_manager.backend import ENDED, ENDED_SHOWN_SECONDS, BackendError, Capacity
from scaler.worker_manager.kubernetes import KubernetesConfig, bytes_of, pods
from scaler.worker_manager.kubernetes.calls import KubernetesError, PodsApi
from scaler.worker_manager.polled import PolledBackend, SeenUnit, Stopped

AT_ONCE = 8
CONFLICT_ATTEMPTS = 4  # attempts per pod, because concurrent creations under one quota conflict
CONFLICT_PAUSE_SECONDS = 0.05
BLOCKED_SECONDS = 300.0  # a pod that cannot start a container for this long (no image, for example) counts as failed
LOST_SECONDS = 30.0  # a pod that exists this long after its grace period is on a dead node
SILENT_SECONDS = 10.0  # interval for reading a starting pod's events while its status has no reason
MAX_REMOVED = 64
REMOVE_AGAIN_SECONDS = 10.0

_log = logging.getLogger(__name__)


class KubernetesBackend(PolledBackend):
    """Units are pods. Raises UsageError if there is no image or cluster, or if the template is invalid."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._template = pod_template(config.k8s_pod_template)
        image = pods.template_image(self._template)
        frame.require_image(config.k8s_image or image, "k8s_image")
        self._api = PodsApi(config)
        self._is_closed = False
        slots = pods.slots_of(config)
        super().__init__(
            service="Kubernetes",
            noun="pods",
            stop_by_hand=f"remove them with `{self._api.by_hand}`",
            capacity=Capacity.of_units(
                slots,
                frame.most_units(config.max_task_concurrency, slots),
                unit_memory_bytes=bytes_of(config.k8s_memory),
            ),
            heartbeat_seconds=config.heartbeat_interval_seconds,
        )
        self._unanswered: list[str] = []
        self._deleted: dict[str, pods.Fields] = {}  # last state of deleted pods whose units have not ended
        self._remove_at: dict[str, float] = {}  # time to remove each ended pod
        self._since: dict[str, tuple[str, float]] = {}  # stage of each pod that has not ended, and the stage's start
        self._warnings: dict[str, str] = {}
        self._warnings_at = -SILENT_SECONDS
        frame.warn_of_loopback("workers in pods", config.worker_scheduler_address)

    def start_some(self, count: int) -> list[str]:
        prefix = pods.slug_of(self._config)
        names = [*self._unanswered, *(f"{prefix}-{uuid.uuid4().hex[:12]}" for _ in range(count))][:count]
        started: list[str] = []
        try:
            if credential := frame.units_credential(self._config):
                self._api.put_secret(pods.secret_of(self._config, credential))
            wanted = {
                name: pods.pod_of(self._config, self._template, name, has_credential=bool(credential)) for name in names
            }
            while names:
                some, names = names[:AT_ONCE], names[AT_ONCE:]
                failures = _each(lambda name: self._create(wanted[name]), some)
                started += [name for name in some if name not in failures]
                uncertain = [name for name, error in failures.items() if error.is_uncertain]
                self._unanswered = [name for name in self._unanswered if name not in some] + uncertain
                for error in failures.values():
                    raise error  # the first error: later errors rarely differ
        except (KubernetesError, ConfigError) as error:  # ConfigError: the credential has no unit keys
            raise BackendError(str(error), started) from error
        return started

    def started_unanswered(self) -> list[str]:
        return []  # the next start uses the same names

    def stop_one(self, unit_id: str) -> Stopped:
        self._api.delete("pods", unit_id)
        return "stopping"

    def list_ids(self, *, search: bool) -> list[str]:
        del search  # an update finds all pods
        gone = {pods.name_of(pod): pod for pod in self._api.update()}
        found = self._api.pods
        self._deleted = {name: pod for name, pod in self._deleted.items() if name in self._alive} | gone
        self._unanswered = [name for name in self._unanswered if name not in found and name not in gone]
        self._remove_at = {name: at for name, at in self._remove_at.items() if name in found}
        self._remove_ended(time.monotonic())
        return [*found, *self._deleted]

    def describe(self, unit_ids: Sequence[str]) -> dict[str, SeenUnit]:
        self._since = {name: self._since[name] for name in unit_ids if name in self._since}
        now, seen = time.monotonic(), dict[str, SeenUnit]()
        for name in unit_ids:
            if name in self._deleted:
                seen[name] = self._seen(self._deleted[name], is_deleted=True)
            elif (pod := self._api.pods.get(name)) is not None:
                found = self._seen(pod)
                seen[name] = shown = self._with_time(name, pod, found, now)
                if shown.state in ENDED:
                    # Keep a failed pod for a while, so that users can inspect its log and events.
                    kept_seconds = ENDED_SHOWN_SECONDS if found.state is UnitState.FAILED else 0.0
                    self._remove_at.setdefault(name, now + kept_seconds)
        return seen

    def close(self) -> None:
        """Remove ended pods and, unless pods need it, the Secret. Keeps all other pods. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            failures = _each(self.stop_one, self._unanswered)
            self._poll(time.monotonic())
            failures |= _each(self._remove, [name for name in self._remove_at if name in self._api.pods])
            is_over = all(unit.is_stopping or unit.state is UnitState.STOPPING for unit in self._alive.values())
            if is_over and not failures:
                self._api.delete("secrets", pods.secret_name(self._config))
            for error in failures.values():
                raise error
        except KubernetesError as error:
            _log.error("pods or a secret may remain: %s; %s", error, self._stop_by_hand)
        self.disconnect()

    def disconnect(self) -> None:
        self._api.close()

    def _create(self, pod: pods.Fields) -> None:
        for attempt in range(1, CONFLICT_ATTEMPTS + 1):
            try:
                self._api.call("create", "pods", body=pod)
            except KubernetesError as error:
                if error.cause == "AlreadyExists":
                    return
                if error.cause != "Conflict" or attempt == CONFLICT_ATTEMPTS:
                    raise
                time.sleep(CONFLICT_PAUSE_SECONDS * attempt)
            else:
                return

    def _remove(self, name: str) -> None:
        self._api.delete("pods", name, 0)

    def _is_stopped(self, name: str) -> bool:
        return name in self._alive and self._alive[name].is_stopping

    def _seen(self, pod: pods.Fields, *, is_deleted: bool = False) -> pods.SeenPod:
        is_stopped = self._is_stopped(pods.name_of(pod))
        return pods.seen(pod, datetime.now(UTC), is_stopped=is_stopped, is_deleted=is_deleted)

    def _with_time(self, name: str, pod: pods.Fields, found: pods.SeenPod, now: float) -> pods.SeenPod:
        silent = found.state is UnitState.PENDING and not found.reason
        stage = "silent" if silent else "blocked" if found.is_blocked else found.state.value
        if self._since.get(name, ("", 0.0))[0] != stage:
            self._since[name] = stage, now
        seconds = now - self._since[name][1]
        grace_seconds = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        if found.state is UnitState.STOPPING and seconds > grace_seconds + LOST_SECONDS:
            state = UnitState.STOPPED if self._is_stopped(name) else UnitState.FAILED
            node = (pod.get("spec") or {}).get("nodeName", "")
            return replace(found, state=state, reason=f"NodeLost: the node {node} does not answer")
        if found.is_blocked and seconds > BLOCKED_SECONDS:
            return replace(found, state=UnitState.FAILED)
        if silent and seconds > SILENT_SECONDS:
            return replace(found, reason=self._warning(name, now))
        return found

    def _warning(self, name: str, now: float) -> str:
        if now - self._warnings_at > SILENT_SECONDS:
            self._warnings_at = now
            with suppress(KubernetesError):  # without this permission, the reason is unknown
                self._warnings = self._api.warnings()
        return self._warnings.get(name, "")

    def _remove_ended(self, now: float) -> None:
        due = [name for name, at in self._remove_at.items() if at <= now][:MAX_REMOVED]
        self._remove_at.update(dict.fromkeys(due, now + REMOVE_AGAIN_SECONDS))
        for name, error in _each(self._remove, due).items():
            _log.warning("cannot remove the pod %s, which has ended; retrying: %s", name, error)


def _each(call: Callable[[str], object], names: Sequence[str]) -> dict[str, KubernetesError]:
    def attempt(name: str) -> KubernetesError | None:
        try:
            call(name)
        except KubernetesError as error:
            return error
        return None

    if not names:
        return {}
    with ThreadPoolExecutor(AT_ONCE, "pods") as pool:
        outcomes = zip(names, pool.map(attempt, names), strict=True)
        return {name: error for name, error in outcomes if error is not None}


def pod_template(path: str | None) -> pods.Fields:
    if path is None:
        return {}
    try:
        found = yaml.safe_load(local_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"k8s_pod_template = {path!r} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("kind", "Pod") != "Pod":
        raise UsageError(f"k8s_pod_template = {path!r} must be a single YAML document of kind Pod")
    if not all(isinstance(found.get(part) or {}, dict) for part in ("metadata", "spec")):
        raise UsageError(f"k8s_pod_template = {path!r}: metadata and spec must be mappings")
    return found
