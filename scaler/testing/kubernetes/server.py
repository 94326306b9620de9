"""The emulated cluster's HTTP server, and its kubelet's containers as processes on this machine."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from scaler.testing.aws.containers import Container, Containers, StartError
from scaler.testing.aws.faults import Error, Faults, LoseReply, Slow, Throttle
from scaler.testing.aws.server import GRACE_SECONDS, KEEP_ALIVE_SECONDS, Cuts
from scaler.testing.aws.service import SteppedService
from scaler.testing.kubernetes.core import (
    ClusterCommand,
    ClusterCore,
    ClusterNode,
    ClusterTimes,
    KillPod,
    StartPod,
    TerminatePod,
)
from scaler.testing.kubernetes.objects import KINDS, ApiRefusalError, Change, Fields

SERVICE = "kubernetes"
START_ERROR_CODE = 128
VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete"}
PATHS = ("/api/v1/namespaces/{namespace}/{plural}", "/api/v1/namespaces/{namespace}/{plural}/{name}")


class KubernetesEmulator(SteppedService):
    """A cluster on loopback for real clients. A context manager. `close` ends everything that the emulator has started.

    `kubeconfig` writes the file that clients need. `faults` is the fault script of requests, by names such as
    `create pods` and `watch pods`. An `Error`'s code becomes the response's reason. Containers are processes on
    this machine. `nodes`, `times`, `missing_images`, `service_accounts`, and `priority_classes` may be changed at
    any time, with immediate effect.
    """

    def __init__(
        self, *, port: int = 0, namespace: str = "default", container_environment: Mapping[str, str] | None = None
    ) -> None:
        """port: 0 for a free port. container_environment: variables of all containers.

        Raises OSError if the port is taken.
        """
        self._socket = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.namespace = namespace
        self.token = uuid.uuid4().hex
        """Token that clients must present. After a change, clients with the old token are refused."""
        self.is_away = False
        """True: every connection is cut."""
        self.faults = Faults()
        self.containers = Containers(container_environment)
        self._core = core = ClusterCore(namespace, lambda: str(uuid.uuid4()))
        self.nodes: dict[str, ClusterNode] = core.nodes
        self.times: ClusterTimes = core.times
        self.missing_images: dict[str, str] = core.missing_images
        self.service_accounts: set[str] = core.service_accounts
        self.priority_classes: set[str] = core.priority_classes
        self._running: dict[str, Container] = {}
        self._exits: list[str] = []
        self._cuts = Cuts()
        self._watches: dict[asyncio.Event, Request] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = uvicorn.Server(self._config())
        self._http = threading.Thread(target=self._server.run, args=([self._socket],), name="kubernetes", daemon=True)
        super().__init__("kubelet")
        self._http.start()

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._wake_watches()
        super().close()
        self.containers.close()
        self._http.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig for clients, and return its path."""
        context = {"cluster": "emulated", "user": "emulated", "namespace": self.namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "emulated", "cluster": {"server": self.url}}],
            "users": [{"name": "emulated", "user": {"token": self.token}}],
            "contexts": [{"name": "emulated", "context": context}],
            "current-context": "emulated",
        }
        path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
        return path

    # -- for tests

    def objects(self, plural: str) -> list[Fields]:
        """Return all objects of a kind, such as pods."""
        with self._changed:
            return self._core.store.all(plural)

    def pods(self, phase: str = "") -> list[str]:
        """Return the names of all pods, or of the pods in a phase."""
        return [pod["metadata"]["name"] for pod in self.objects("pods") if phase in ("", pod["status"]["phase"])]

    def create(self, plural: str, name: str, **fields: Any) -> None:
        """Store an object as another user of the cluster, such as a quota with `spec`."""
        with self._changing():
            self._core.create(plural, {"metadata": {"name": name}, **fields}, time.time())

    def delete(self, plural: str, name: str) -> None:
        """Delete an object as another user of the cluster."""
        with self._changing():
            self._core.delete(plural, name, None, time.time())

    def kill_container(self, pod: str, number: int = signal.SIGKILL, reason: str = "") -> None:
        """Send a signal to a pod's container. reason: reported by the kubelet, such as OOMKilled."""
        with self._changed:
            self._core.note_reason(pod, reason)
            container = self._running[pod]
        if number == signal.SIGKILL:
            container.kill()
        else:
            container.send_signal(number)

    def evict(self, pod: str, message: str = "The node was low on resource: memory.") -> None:
        """Evict a pod by the kubelet."""
        with self._changing():
            self._perform(self._core.evict(pod, message, time.time()))

    def disrupt(self, pod: str, reason: str, message: str) -> None:
        """Remove a pod with its grace period, as when its node is drained (EvictionByEvictionAPI)."""
        with self._changing():
            self._core.disrupt(pod, reason, message, time.time())

    def lose_node(self, node: str) -> None:
        """Remove a node with everything that runs on it."""
        with self._changing():
            self._perform(self._core.lose_node(node, time.time()))

    def compact(self) -> None:
        """Drop the change history and end all watches, which then find their version expired (410)."""
        with self._changing():
            self._core.store.compact()
        self.cut_watches()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hide all changes from clients until the block ends."""
        with self._changed:
            yield

    def cut_watches(self) -> None:
        def cut() -> None:
            for request in self._watches.values():
                self._cuts.cut(request)

        if self._loop is not None:
            self._loop.call_soon_threadsafe(cut)

    def output(self, pod: str) -> str:
        """Return the last part of a container's output."""
        with self._changed:
            return self._running[pod].output()

    # -- the kubelet

    def _states(self) -> list[str]:
        return [f"{pod['metadata']['name']}: {pod['status']}" for pod in self._core.store.all("pods")]

    def _step(self, now: float) -> float | None:
        with self._changed:
            exits, self._exits = self._exits, []
            for name in exits:
                container = self._running[name]
                self._core.ended(name, container.poll() or 0, container.output(), now)
            self._perform(self._core.step(now))
            due = self._core.due()
            self._changed.notify_all()
        self._wake_watches()
        return due

    def _perform(self, commands: list[ClusterCommand]) -> None:
        for command in commands:
            match command:
                case StartPod(name, words, environment):
                    self._start(name, words, environment)
                case TerminatePod(name):
                    self._running[name].terminate()
                case KillPod(name):
                    self._running[name].kill()

    def _start(self, name: str, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
        def on_exit(_: Container) -> None:
            with self._changing():
                self._exits.append(name)

        try:
            self._running[name] = self.containers.start(words, environment, name, on_exit)
        except StartError as error:
            self._core.note_reason(name, "StartError")
            self._core.ended(name, START_ERROR_CODE, str(error), time.time())
            return
        self._core.started(name, time.time())

    # -- HTTP

    def _config(self) -> uvicorn.Config:
        methods = ["DELETE", "GET", "POST", "PUT"]
        routes = [Route(path, self._serve, methods=methods) for path in PATHS]
        config = uvicorn.Config(
            Starlette(routes=[*routes, Route(PATHS[1] + "/log", self._log)]),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        return self._cuts.track(config)

    async def _log(self, request: Request) -> Response:
        return PlainTextResponse(await run_in_threadpool(self.output, request.path_params["name"]))

    async def _serve(self, request: Request) -> Response:
        self._loop = asyncio.get_running_loop()
        plural, name = request.path_params["plural"], request.path_params.get("name")
        query = request.query_params
        is_watch = query.get("watch") in ("1", "true", "True")
        verb = VERBS.get(request.method) or ("watch" if is_watch else "get" if name else "list")
        fault = self.faults.take(SERVICE, f"{verb} {plural}")
        if self.is_away:
            self._cuts.cut(request)
        try:
            if request.headers.get("authorization") != f"Bearer {self.token}":
                raise ApiRefusalError(401, "Unauthorized", "Unauthorized")
            match fault:
                case Throttle():
                    raise ApiRefusalError(429, "TooManyRequests", "the server has received too many requests")
                case Error(code, message, status):
                    raise ApiRefusalError(status, code, message)
                case Slow(seconds):
                    await asyncio.sleep(seconds)
                case _:
                    pass
            if request.path_params["namespace"] != self.namespace or plural not in KINDS:
                missing = request.path_params["namespace"]
                raise ApiRefusalError(404, "NotFound", f'namespaces "{missing}" not found')
            if is_watch:
                return await self._watch(request, plural)
            body = json.loads(await request.body() or b"{}")
            answer = await run_in_threadpool(self._answer, verb, plural, name or "", query, body)
            http_status = 201 if verb == "create" else 200
        except ApiRefusalError as refusal:
            answer, http_status = refusal.status(), refusal.code
        if isinstance(fault, LoseReply):
            self._cuts.cut(request)
        return JSONResponse(answer, http_status)

    def _answer(self, verb: str, plural: str, name: str, query: Mapping[str, str], body: Fields) -> Fields:
        store, now = self._core.store, time.time()
        with self._changing():
            match verb:
                case "create":
                    return self._core.create(plural, body, now)
                case "update":
                    return store.update(plural, body)
                case "delete":
                    grace = query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
                    return self._core.delete(plural, name, None if grace is None else int(grace), now)
                case "get":
                    return store.get(plural, name)
            found = store.all(plural, query.get("labelSelector", ""), query.get("fieldSelector", ""))
            begin, limit = int(query.get("continue") or 0), int(query.get("limit") or 0) or len(found)
            more = {"continue": str(begin + limit)} if begin + limit < len(found) else {}
            metadata = {"resourceVersion": str(store.version), **more}
            page = found[begin : begin + limit]
            return {"kind": f"{KINDS[plural]}List", "apiVersion": "v1", "metadata": metadata, "items": page}

    async def _watch(self, request: Request, plural: str) -> Response:
        query = request.query_params
        version = int(query.get("resourceVersion") or 0)
        selectors = query.get("labelSelector", ""), query.get("fieldSelector", "")
        end = time.monotonic() + min(self.times.watch, float(query.get("timeoutSeconds") or "inf"))
        woken = asyncio.Event()

        def read() -> list[Change]:
            with self._changed:
                return self._core.store.changes(plural, version, *selectors)

        async def events() -> AsyncIterator[bytes]:
            nonlocal version
            self._watches[woken] = request
            try:
                while not self._server.should_exit:
                    woken.clear()
                    for change in await run_in_threadpool(read):
                        version = change.version
                        yield _line(change.type, change.found)
                    try:
                        await asyncio.wait_for(woken.wait(), end - time.monotonic())
                    except TimeoutError:
                        kind = {"kind": KINDS[plural], "apiVersion": "v1"}
                        yield _line("BOOKMARK", {**kind, "metadata": {"resourceVersion": str(version)}})
                        return
            except ApiRefusalError as refusal:  # the watch's version has expired
                yield _line("ERROR", refusal.status())
            finally:
                del self._watches[woken]

        return StreamingResponse(events(), media_type="application/json")

    def _wake_watches(self) -> None:
        def wake() -> None:
            for woken in self._watches:
                woken.set()

        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(wake)


def _line(kind: str, found: Fields) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"
