"""The backend of the type kubernetes. A unit's id is its pod's name, so a lost answer never starts a unit twice."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import yaml

from scaler.errors import ConfigError, UsageError
from scaler.paths import local_path
from scaler.protocol.messages import UnitState
from scaler.worker_manager.backend import (
    ENDED,
    ENDED_SHOWN_SECONDS,
    BackendError,
    Capacity,
    EndedUnits,
    Unit,
    most_units,
    units_credential,
)
from scaler.worker_manager.containers import loopback_warning, require_image
from scaler.worker_manager.kubernetes import KubernetesConfig, bytes_of, pods
from scaler.worker_manager.kubernetes.calls import KubernetesError, PodsApi
from scaler.worker_manager.kubernetes.watching import PodWatch
from scaler.worker_manager.polled import MANAGER_STOP_SECONDS

AT_ONCE = 8
CONFLICT_ATTEMPTS = 4  # attempts per pod, because pods created at the same time under one quota conflict
CONFLICT_PAUSE_SECONDS = 0.05
BLOCKED_SECONDS = 300.0  # a pod whose container cannot start for this long (no image, for example) counts as failed
LOST_SECONDS = 30.0  # a pod that exists this long after its grace period is on a dead node
SILENT_SECONDS = 10.0  # interval for reading events about a starting pod without a reason
MAX_REMOVED = 64
REMOVE_AGAIN_SECONDS = 10.0

_log = logging.getLogger(__name__)


class KubernetesBackend:
    """Units are pods. Raises UsageError without an image or a cluster, and for an invalid template."""

    def __init__(self, config: KubernetesConfig) -> None:
        self.capacity = Capacity.of_units(
            pods.slots_of(config),
            most_units(config.max_task_concurrency, pods.slots_of(config)),
            unit_memory_bytes=bytes_of(config.k8s_memory),
            stop_seconds=MANAGER_STOP_SECONDS,
            outlive_manager=True,
        )
        self._config = config
        self._template = pod_template(config.k8s_pod_template)
        from_template = pods.template_image(self._template)
        require_image(config.k8s_image or from_template, "k8s_image")
        self._api = PodsApi(config)
        self._watch = PodWatch(self._api)
        self._unanswered: list[str] = []
        self._stopped: set[str] = set()
        self._known: set[str] = set()  # living pods that this process has started or listed
        self._judged: dict[str, float] = {}
        self._since: dict[str, tuple[str, float]] = {}  # stage of each living pod, and since when
        self._ended = EndedUnits()
        self._warnings: dict[str, str] = {}
        self._warnings_at = -SILENT_SECONDS
        if warning := loopback_warning("workers in pods", config.worker_scheduler_address):
            _log.warning("%s", warning)

    def start(self, count: int) -> list[str]:
        prefix = pods.slug_of(self._config)
        names = [*self._unanswered, *(f"{prefix}-{uuid.uuid4().hex[:12]}" for _ in range(count))][:count]
        self._known.update(names)
        started: list[str] = []
        try:
            credential = units_credential(self._config)
            if credential:
                self._api.put_secret(pods.secret_of(self._config, credential))
            has_credential = bool(credential)
            wanted = {
                name: pods.pod_of(self._config, self._template, name, has_credential=has_credential) for name in names
            }
            while names:
                some, names = names[:AT_ONCE], names[AT_ONCE:]
                failures = _each(lambda name: self._create(wanted[name]), some)
                started += [name for name in some if name not in failures]
                uncertain = [name for name, error in failures.items() if error.is_uncertain]
                self._unanswered = [name for name in self._unanswered if name not in some] + uncertain
                for error in failures.values():
                    raise error  # the first one; further errors rarely differ
        except (KubernetesError, ConfigError) as error:  # the latter for a credential without units
            raise BackendError(str(error), started) from error
        return started

    def stop(self, unit_ids: Sequence[str]) -> None:
        left = [name for name in unit_ids if name not in self._stopped]
        failures = _each(self._api.delete_pod, left)
        self._stopped.update(name for name in left if name not in failures)
        if failures:
            raise next(iter(failures.values()))

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def close(self) -> None:
        """Remove ended pods and, unless pods need it, the Secret. Other pods stay. Idempotent."""
        if self._watch.is_closed:
            return
        try:
            failures = _each(self._api.delete_pod, self._unanswered)
            shown: pods.Fields = {} if failures else self._watch.snapshot()[0]
            states = {name: self._unit(name, self._seen(pod)).state for name, pod in shown.items()}
            failures |= _each(self._remove, [name for name, state in states.items() if state in ENDED])
            if not failures and all(state in (*ENDED, UnitState.STOPPING) for state in states.values()):
                self._api.delete_secret(pods.secret_name(self._config))
            for error in failures.values():
                raise error
        except KubernetesError as error:
            _log.error("pods or a secret may be left: %s; remove them with `%s`", error, self._api.by_hand)
        self._watch.close()
        self._api.close()

    def _create(self, pod: pods.Fields) -> None:
        for attempt in range(1, CONFLICT_ATTEMPTS + 1):
            try:
                self._watch.add(self._api.create_pod(pod))
            except KubernetesError as error:
                if error.cause == "AlreadyExists":
                    return
                if error.cause != "Conflict" or attempt == CONFLICT_ATTEMPTS:
                    raise
                time.sleep(CONFLICT_PAUSE_SECONDS * attempt)
            else:
                return

    def _remove(self, name: str) -> None:
        self._api.delete_pod(name, 0)

    def list(self) -> list[Unit]:
        now = time.monotonic()
        shown, deleted = self._watch.snapshot()
        for pod in deleted:
            name = pods.name_of(pod)
            self._note_end(name, self._seen(pod, is_deleted=True), now, is_kept=False)
            self._stopped.discard(name)
            self._judged.pop(name, None)
        gone = {pods.name_of(pod) for pod in deleted}
        self._unanswered = [name for name in self._unanswered if name not in shown and name not in gone]
        units = []
        for name, pod in shown.items():
            if name in self._judged:
                continue
            found = self._seen(pod)
            if found.state is UnitState.STOPPING and name not in self._known:
                self._stopped.add(name)  # by an earlier process of this manager
                found = self._seen(pod)
            is_kept = found.state is UnitState.FAILED  # for a while, so that users can inspect its log and events
            found = self._with_time(name, pod, found, now)
            if found.state in ENDED:
                self._note_end(name, found, now, is_kept=is_kept)
            else:
                units.append(self._unit(name, found))
        self._known = {unit.unit_id for unit in units} | set(self._unanswered)
        self._since = {name: since for name, since in self._since.items() if name in self._known}
        self._stopped &= shown.keys()
        self._remove_ended(shown, now)
        return units + self._ended.shown(now)

    def _seen(self, pod: pods.Fields, *, is_deleted: bool = False) -> pods.SeenPod:
        return pods.seen(pod, datetime.now(UTC), is_stopped=pods.name_of(pod) in self._stopped, is_deleted=is_deleted)

    def _unit(self, name: str, found: pods.SeenPod) -> Unit:
        is_stopping = name in self._stopped and found.state not in ENDED
        state = UnitState.STOPPING if is_stopping else found.state
        return Unit(name, state, self.capacity.unit_slots, found.age_seconds, found.reason, found.remaining_seconds)

    def _with_time(self, name: str, pod: pods.Fields, found: pods.SeenPod, now: float) -> pods.SeenPod:
        silent = found.state is UnitState.PENDING and not found.reason
        stage = "silent" if silent else "blocked" if found.is_blocked else found.state.value
        if self._since.get(name, ("", 0.0))[0] != stage:
            self._since[name] = stage, now
        seconds = now - self._since[name][1]
        if found.state is UnitState.STOPPING and seconds > pods.grace_seconds(pod) + LOST_SECONDS:
            state = UnitState.STOPPED if name in self._stopped else UnitState.FAILED
            return replace(found, state=state, reason=pods.node_text(pod))
        if found.is_blocked and seconds > BLOCKED_SECONDS:
            return replace(found, state=UnitState.FAILED)
        if silent and seconds > SILENT_SECONDS:
            return replace(found, reason=self._warning(name, now))
        return found

    def _warning(self, name: str, now: float) -> str:
        if now - self._warnings_at > SILENT_SECONDS:
            self._warnings_at = now
            with suppress(KubernetesError):  # without the permission, there is no reason
                self._warnings = self._api.warnings()
        return self._warnings.get(name, "")

    def _note_end(self, name: str, found: pods.SeenPod, now: float, *, is_kept: bool) -> None:
        if name in self._judged:
            return
        self._judged[name] = now + ENDED_SHOWN_SECONDS if is_kept else now
        if name in self._known:  # a unit that ended before this process knew it is not a failed start
            self._ended.add(self._unit(name, found), now)

    def _remove_ended(self, shown: Collection[str], now: float) -> None:
        due = [name for name, at in self._judged.items() if at <= now and name in shown][:MAX_REMOVED]
        self._judged.update(dict.fromkeys(due, now + REMOVE_AGAIN_SECONDS))
        for name, error in _each(self._remove, due).items():
            _log.warning("cannot remove the pod %s, which has ended, will try again: %s", name, error)


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
        raise UsageError(f"k8s_pod_template = {path!r} must be one YAML document of the kind Pod")
    if not all(isinstance(found.get(part) or {}, dict) for part in ("metadata", "spec")):
        raise UsageError(f"k8s_pod_template = {path!r}: metadata and spec must be mappings")
    return found
