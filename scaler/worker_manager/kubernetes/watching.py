"""A manager's pods as shown by the API, maintained by a thread that lists them once and then watches."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress

import urllib3

from scaler.backoff import Backoff
from scaler.worker_manager.kubernetes.calls import KubernetesError, PodsApi
from scaler.worker_manager.kubernetes.pods import Fields, name_of

RETRY_BACKOFF = Backoff(0.1, 8.0)
FIRST_LIST_SECONDS = 40.0  # wait of `snapshot` for the first list; longer than two attempts of its request
LASTING_SECONDS = 20.0  # a watch that breaks off after this time does not count as a failure
END_SECONDS = 2.0
GONE = 410  # status: the API has dropped the changes since the list


class PodWatch:
    """Lists and watches pods, starting with the first `snapshot`."""

    def __init__(self, api: PodsApi) -> None:
        self._api = api
        self._changed = threading.Condition()  # guards the fields below; notified by the first list
        self._pods: dict[str, Fields] = {}
        self._deleted: list[Fields] = []
        self._error: KubernetesError | None = None
        self._has_listed = False
        self._open: urllib3.BaseHTTPResponse | None = None
        self._closing = threading.Event()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def fileno(self) -> int:
        return self._descriptor

    def snapshot(self) -> tuple[dict[str, Fields], list[Fields]]:
        """Return all pods by name, and those deleted since the last call. Raises KubernetesError without an answer."""
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._has_listed or self._error is not None, FIRST_LIST_SECONDS)
            with suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)
            if self._error is not None:
                raise self._error
            if not self._thread.is_alive():
                raise RuntimeError("the thread that watches pods has ended: see the traceback on stderr")
            if not self._has_listed:
                raise KubernetesError(f"cannot list pods: no answer within {FIRST_LIST_SECONDS:g} s")
            deleted, self._deleted = self._deleted, []
            return dict(self._pods), deleted

    def add(self, pod: Fields) -> None:
        """Add a new pod, unless the watch has shown it or its end."""
        with self._changed:
            name = name_of(pod)
            if all(name != name_of(deleted) for deleted in self._deleted):
                self._pods.setdefault(name, pod)

    def close(self) -> None:
        self._closing.set()
        with self._changed:
            if self._open is not None:
                self._open.shutdown()
        if self._thread.ident is not None:
            self._thread.join(END_SECONDS)
        if not self._thread.is_alive():  # otherwise it still uses the descriptor
            os.close(self._descriptor)

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                version = self._list()
                while not self._closing.is_set():
                    version = self._follow(version)
            except KubernetesError as error:
                failures = 1 if time.monotonic() - began > LASTING_SECONDS else failures + 1
                # A watch that breaks off or is outdated is no failure: the next list detects one.
                if error.code != GONE and (self._open is None or error.code):
                    with self._changed:
                        self._error = error
                        self._signal()
            finally:
                self._close_watch()
            self._closing.wait(RETRY_BACKOFF.seconds(failures, random.random()) if failures else 0.0)  # noqa: S311

    def _list(self) -> str:
        with self._changed:
            before = set(self._pods)
        listed, version = self._api.list_pods()
        pods = {name_of(pod): pod for pod in listed}
        with self._changed:
            for name in before - set(pods):
                self._deleted.append(self._pods.pop(name))
            self._pods |= pods  # other pods were created after the list
            self._has_listed = True
        return version

    def _follow(self, version: str) -> str:
        watch = self._api.open_watch(version)
        with self._changed:
            self._open, self._error = watch, None
            if self._closing.is_set():
                return version
            self._signal()
        for kind, found in self._api.read_watch(watch):
            version = str(found["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                continue
            with self._changed:
                if kind == "DELETED":
                    self._pods.pop(name_of(found), None)
                    self._deleted.append(found)
                else:
                    self._pods[name_of(found)] = found
                self._signal()
        self._close_watch()
        return version

    def _signal(self) -> None:
        os.eventfd_write(self._descriptor, 1)
        self._changed.notify_all()

    def _close_watch(self) -> None:
        with self._changed:
            watch, self._open = self._open, None
        if watch is not None:
            watch.release_conn()
            watch.close()
