"""Versioned storage of API objects, with paged lists and watches. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Fields = dict[str, Any]
KINDS = {"pods": "Pod", "secrets": "Secret", "events": "Event", "resourcequotas": "ResourceQuota"}
FIRST_VERSION = 1000
MAX_HISTORY = 10_000
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class ApiRefusalError(Exception):
    """The API refuses a request. reason: the API's own reason code."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Fields:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": self.reason,
            "message": self.message,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """A watch event. type: ADDED, MODIFIED, or DELETED."""

    version: int
    type: str
    plural: str
    found: Fields


def timestamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ObjectStore:
    """Objects of one namespace by kind and name. Returned objects are copies."""

    def __init__(self, namespace: str, new_uid: Callable[[], str]) -> None:
        self.namespace = namespace
        self._new_uid = new_uid
        self._objects: dict[tuple[str, str], Fields] = {}
        self._version = FIRST_VERSION
        self._history: list[Change] = []
        self._compacted = FIRST_VERSION
        """Changes up to this version are dropped."""

    @property
    def version(self) -> int:
        return self._version

    def create(self, plural: str, given: Fields, now: float) -> Fields:
        name = str((given.get("metadata") or {}).get("name") or "")
        self._check(plural, name, given)
        if (plural, name) in self._objects:
            raise ApiRefusalError(409, "AlreadyExists", f'{plural} "{name}" already exists')
        found = deepcopy(given)
        own = {"uid": self._new_uid(), "namespace": self.namespace, "creationTimestamp": timestamp(now)}
        found["metadata"] = {**found["metadata"], **own}
        return self._store("ADDED", plural, _with_data(found))

    def get(self, plural: str, name: str) -> Fields:
        try:
            return deepcopy(self._objects[plural, name])
        except KeyError:
            raise ApiRefusalError(404, "NotFound", f'{plural} "{name}" not found') from None

    def update(self, plural: str, given: Fields) -> Fields:
        name = given["metadata"]["name"]
        old = self.get(plural, name)["metadata"]
        version = given["metadata"].get("resourceVersion")
        if version not in (None, old["resourceVersion"]):
            text = f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'
            raise ApiRefusalError(409, "Conflict", text)
        kept = {key: old[key] for key in ("uid", "namespace", "creationTimestamp")}
        found = deepcopy(given) | {"metadata": {**given["metadata"], **kept}}
        return self._store("MODIFIED", plural, _with_data(found))

    def remove(self, plural: str, name: str) -> Fields:
        found = self.get(plural, name)
        del self._objects[plural, name]
        return self._remember("DELETED", plural, found)

    def all(self, plural: str, labels: str = "", fields: str = "") -> list[Fields]:
        found = [deepcopy(each) for (kind, _), each in sorted(self._objects.items()) if kind == plural]
        return [each for each in found if fits(each, labels, fields)]

    def changes(self, plural: str, version: int, labels: str = "", fields: str = "") -> list[Change]:
        """Return the changes since a version. Raises ApiRefusalError (410) if they are dropped."""
        if version < self._compacted:
            raise ApiRefusalError(410, "Expired", f"too old resource version: {version} ({self._compacted})")
        return [
            change
            for change in self._history
            if change.version > version and change.plural == plural and fits(change.found, labels, fields)
        ]

    def compact(self) -> None:
        """Drop all changes, as a server does after some minutes. Watches must list again."""
        self._version += 1
        self._compacted = self._version
        self._history.clear()

    def _store(self, kind: str, plural: str, found: Fields) -> Fields:
        self._objects[plural, found["metadata"]["name"]] = found
        return self._remember(kind, plural, found)

    def _remember(self, kind: str, plural: str, found: Fields) -> Fields:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._history.append(Change(self._version, kind, plural, deepcopy(found)))
        if len(self._history) > MAX_HISTORY:
            self._compacted = self._history.pop(0).version
        return deepcopy(found)

    def _check(self, plural: str, name: str, given: Mapping[str, Any]) -> None:
        if not _NAME.fullmatch(name):
            raise _invalid(plural, name, f'metadata.name: Invalid value: "{name}"')
        for key, value in (given["metadata"].get("labels") or {}).items():
            if not isinstance(value, str) or not _LABEL.fullmatch(value):
                raise _invalid(plural, name, f'metadata.labels: Invalid value: "{value}": {key}')
        if plural == "pods" and len(name) > 63:
            raise _invalid(plural, name, "metadata.name: Invalid value: must be no more than 63 characters")
        for container in (given.get("spec") or {}).get("containers") or ():
            if not container.get("image"):
                raise _invalid(plural, name, "spec.containers[0].image: Required value")


def fits(found: Mapping[str, Any], labels: str, fields: str) -> bool:
    own = found["metadata"].get("labels") or {}
    return all(own.get(key) == value for key, value in _pairs(labels)) and all(
        _at(found, key) == value for key, value in _pairs(fields)
    )


def _pairs(selector: str) -> list[tuple[str, str]]:
    items = [item.partition("=") for item in selector.split(",") if item]
    return [(key, value.removeprefix("=")) for key, _, value in items]


def _at(found: Any, path: str) -> Any:
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _with_data(found: Fields) -> Fields:
    given = found.pop("stringData", {})
    coded = {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}
    return found | {"data": {**found.get("data", {}), **coded}} if given else found


def _invalid(plural: str, name: str, text: str) -> ApiRefusalError:
    return ApiRefusalError(422, "Invalid", f'{KINDS[plural]} "{name}" is invalid: {text}')
