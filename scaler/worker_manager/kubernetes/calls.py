"""Requests to a cluster's API. Error texts name a remedy. The official client is used only for configuration and
authentication. Objects are dictionaries, because the client's models lack fields of other API versions."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import urllib3
from kubernetes import config as kubeconfig
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject

from scaler._version import __version__
from scaler.errors import UsageError
from scaler.worker_manager.backend import BackendError, short
from scaler.worker_manager.kubernetes import KubernetesConfig
from scaler.worker_manager.kubernetes.pods import OWNER_LABEL, Fields, name_of, owner_of

CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = 5.0, 10.0
CONNECTIONS = 16
PAGE_OBJECTS = 500
USER_AGENT = f"scaler/{__version__}"
METHODS = {"create": "POST", "update": "PUT", "delete": "DELETE"}
RETRIES = urllib3.Retry(1, allowed_methods=None, redirect=0, respect_retry_after_header=False, backoff_factor=0)
"""One retry, in case a keep-alive connection was closed. Unique names make every request idempotent."""
ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD = re.compile(r'^(?:pods|Pod) "[^"]*" (?:is )?')  # a pod's name, which would make every text unique
_USED = re.compile(r"used: .*?, (?=limited: )")
_CREDENTIALS = "the cluster rejects these credentials (401): renew them, or change k8s_kubeconfig or k8s_context"


class KubernetesError(BackendError):
    """A failed request. code: HTTP status, or 0 if there was no answer. cause: the reason. is_uncertain: the request
    may have been executed."""

    def __init__(self, text: str, code: int = 0, cause: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.cause = cause
        self.is_uncertain = code == 0 or code >= 500


class PodsApi:
    """A manager's pods and Secret. Thread-safe. Raises KubernetesError, and UsageError without a cluster."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._selector = f"{OWNER_LABEL}={owner_of(config)}"
        self._lock = threading.Lock()
        self._made: tuple[Configuration, urllib3.PoolManager] | None = None  # None after credentials were refused
        self.pods: dict[str, Fields] = {}
        self.namespace = config.k8s_namespace or ""
        self._client()

    @property
    def by_hand(self) -> str:
        return f"kubectl --namespace {self.namespace} delete pods,secrets --selector {self._selector}"

    def delete(self, plural: str, name: str, grace_seconds: int | None = None) -> None:
        """Delete an object if it exists. grace_seconds: the pod's grace period; None: as in its spec."""
        try:
            self.call(
                "delete", plural, name, query={} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
            )
        except KubernetesError as error:
            if error.code != 404:
                raise

    def update(self) -> list[Fields]:
        """Update `pods`. Return the last known state of each pod deleted since the last call."""
        found: dict[str, Fields] = {}
        query: Fields = {"labelSelector": self._selector, "limit": PAGE_OBJECTS}
        while query.get("continue", "first"):
            page = self.call("list", "pods", query=query)
            found |= {name_of(pod): pod for pod in page["items"]}
            query["continue"] = page["metadata"].get("continue")
        deleted = [pod for name, pod in self.pods.items() if name not in found]
        self.pods = found
        return deleted

    def warnings(self) -> dict[str, str]:
        query = {"fieldSelector": "type=Warning,involvedObject.kind=Pod", "limit": PAGE_OBJECTS}
        events = self.call("list", "events", query=query)["items"]
        events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return {event["involvedObject"]["name"]: f"{event['reason']}: {event['message']}" for event in events}

    def put_secret(self, secret: Fields) -> None:
        try:
            self.call("create", "secrets", body=secret)
        except KubernetesError as error:
            if error.cause != "AlreadyExists":
                raise
            self.call("update", "secrets", secret["metadata"]["name"], body=secret)

    def close(self) -> None:
        with self._lock:
            if self._made is not None:
                self._made[1].clear()

    def call(
        self, verb: str, plural: str, name: str = "", *, query: Fields | None = None, body: Fields | None = None
    ) -> Fields:
        what = f"{verb} {plural}"
        try:
            configuration, pool = self._client()
        except UsageError as error:  # the file changed after the manager started
            raise KubernetesError(f"cannot {what}: {error}", 401) from error
        url = "/".join(filter(None, (configuration.host, "api/v1/namespaces", self.namespace, plural, name)))
        with self._errors(what):
            headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": USER_AGENT}
            for setting in configuration.auth_settings().values():  # renews a token
                headers[setting["key"]] = setting["value"]
            answer = pool.request(
                METHODS.get(verb, "GET"),
                f"{url}?{urlencode(query or {})}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS),
                retries=RETRIES,
            )
            if answer.status < 300:
                found: Fields = json.loads(answer.data)
                return found
            text = answer.data.decode("utf-8", "replace")
        if answer.status == 401:
            with self._lock:
                self._made = None
        try:
            status = json.loads(text)
        except ValueError:
            status = None
        if not isinstance(status, dict):
            status = {"reason": answer.reason, "message": text or answer.reason}
        raise self._refusal(what, answer.status, status)

    def _client(self) -> tuple[Configuration, urllib3.PoolManager]:
        with self._lock:
            if self._made is None:
                try:
                    configuration = self._configured()
                except (kubeconfig.ConfigException, OSError) as error:
                    file, context = self._config.k8s_kubeconfig, self._config.k8s_context
                    where = f"k8s_kubeconfig = {file!r}, k8s_context = {context!r}"
                    raise UsageError(f"cannot determine the cluster's address ({where}): {error}") from error
                self._made = configuration, RESTClientObject(configuration).pool_manager
            return self._made

    def _configured(self) -> Configuration:
        configuration = Configuration()
        configuration.connection_pool_maxsize = CONNECTIONS
        file, context = self._config.k8s_kubeconfig or os.environ.get("KUBECONFIG"), self._config.k8s_context
        has_account = (ACCOUNT_DIRECTORY / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ
        if file is None and has_account and not Path(kubeconfig.KUBE_CONFIG_DEFAULT_LOCATION).expanduser().exists():
            kubeconfig.load_incluster_config(client_configuration=configuration)
            self.namespace = self.namespace or (ACCOUNT_DIRECTORY / "namespace").read_text(encoding="utf-8").strip()
            return configuration
        contexts, active = kubeconfig.list_kube_config_contexts(file)
        if context is not None:
            active = next((each for each in contexts if each["name"] == context), None)
        if active is not None:  # otherwise the next line raises the error
            self.namespace = self.namespace or active["context"].get("namespace") or "default"
        kubeconfig.load_kube_config(file, context, client_configuration=configuration, persist_config=False)
        return configuration

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (urllib3.exceptions.HTTPError, OSError) as error:
            cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
            name = type(cause or error).__name__
            raise KubernetesError(f"cannot {what}: the cluster's API does not answer ({name})") from error
        except ValueError as error:
            raise KubernetesError(f"cannot {what}: the cluster's API did not return JSON: {error}", 400) from error

    def _refusal(self, what: str, code: int, status: Fields) -> KubernetesError:
        cause = str(status.get("reason") or "")
        message = _POD.sub("", short(str(status.get("message") or cause)))
        where = f"in the namespace {self.namespace}"
        if code == 401:
            text = _CREDENTIALS
        elif code == 403 and "exceeded quota" in message:
            text = f"quota {where}: {_USED.sub('', message).removeprefix('forbidden: ')}"
        elif code == 403:
            text = f"not allowed to {what} {where} (403): {message}"
        elif code == 429:
            text = f"the cluster's API is busy (429): {what}"
        elif code >= 500:
            text = f"cannot {what}: the cluster's API failed ({code})"
        else:
            text = f"cannot {what} {where} ({code} {cause}): {message}"
        return KubernetesError(text, code, cause)
