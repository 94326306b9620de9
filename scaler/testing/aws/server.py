"""The emulator's HTTP server: one endpoint for all services, with scripted faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self
from xml.sax.saxutils import escape

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scaler.testing.aws.batch import EmulatedBatch
from scaler.testing.aws.containers import Containers
from scaler.testing.aws.ecs import EmulatedEcs, TaskMetadata
from scaler.testing.aws.faults import Error, Fault, Faults, LoseReply, Partial, ServiceError, Slow, Throttle
from scaler.testing.aws.instances import EmulatedEc2, InstanceMetadata
from scaler.testing.aws.moto_services import Moto, MotoService
from scaler.testing.aws.service import Answer, EmulatorContext, Service, ServiceCall

REGION = "us-east-1"
METHODS = ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]
SERVICES = "ECS, Batch, Service Quotas, S3, IAM, CloudWatch Logs, Systems Manager, STS, EC2 and ECR"
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 1
"""Maximum time for requests in progress when the server stops."""


class AwsEmulator:
    """AWS on loopback for real clients. A context manager. `close` ends everything that the emulator has started.

    ECS, Batch, and Service Quotas are emulated here. moto implements S3, IAM, CloudWatch Logs, Systems Manager, STS,
    EC2, and ECR.

    endpoint_url: endpoint of every service. environment: variables for boto3. faults: the fault script. Containers are
    processes on this machine.
    """

    def __init__(self, *, port: int = 0, container_environment: Mapping[str, str] | None = None) -> None:
        """port: 0 for a free port. container_environment: variables of all containers in addition to AWS's.

        Raises OSError if the port is taken.
        """
        self._socket = socket.create_server(("127.0.0.1", port), backlog=1024)
        # Connections inherit this option. asyncio sets it only for sockets that it creates, and the delay is 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.endpoint_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.faults = Faults()
        self.environment = {
            "AWS_ACCESS_KEY_ID": "emulated",
            "AWS_SECRET_ACCESS_KEY": "emulated",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }
        self.containers = Containers({**self.environment, **(container_environment or {})})
        self.on_request: Callable[[str, str, ServiceCall], object] = lambda *_: None
        """Called with service, operation, and request before each answer."""
        moto = Moto()
        context = EmulatorContext(self.endpoint_url, REGION, self.containers, partial(moto.parameter, REGION))
        self.ecs = EmulatedEcs(context)
        self.batch = EmulatedBatch(context)
        self.s3 = MotoService(moto, "s3")
        self.ec2 = EmulatedEc2(moto, context)
        metadata: list[Service] = [TaskMetadata(self.ecs), InstanceMetadata(self.ec2)]
        others = [MotoService(moto, name) for name in ("iam", "logs", "ssm", "sts")]
        own = (self.ecs, *metadata, self.batch, self.s3, self.ec2)
        self._services: list[Service] = [*own, *others]
        """In the order in which services are asked whether they handle a call."""
        self._cut = Cuts()
        self._server = uvicorn.Server(self._config())
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="emulator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        for service in self._services:
            service.close()
        self.containers.close()
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            Starlette(routes=[Route("/{path:path}", self._serve, methods=METHODS)]),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        return self._cut.track(config)

    async def _serve(self, request: Request) -> Response:
        path: str = request.scope["path"]  # the path of request.url would end at a ? in a key
        query_string = request.scope["query_string"].decode("latin-1")
        call = ServiceCall(
            request.method, path, request.query_params, query_string, request.headers, await request.body()
        )
        for service in self._services:
            operation = service.name_of(call)
            if operation is not None:
                self.on_request(service.name, operation, call)
                fault = self.faults.take(service.name, operation)
                try:
                    answer = await self._perform(service, operation, call, fault)
                except asyncio.CancelledError:  # the server stops during a slow request
                    answer = service.refuse(ServiceError("ServiceUnavailable", "the emulator has been closed", 503))
                if isinstance(fault, LoseReply):
                    self._cut.cut(request)
                headers = {"x-amzn-RequestId": str(uuid.uuid4()), **answer.headers}
                return Response(answer.body, answer.status, headers)
        # In the formats of query and JSON services, so that boto3 shows the text.
        text = f"the emulator has {SERVICES}, none of which has {call.method} {call.path}"
        if "json" in call.headers.get("content-type", ""):
            return JSONResponse({"__type": "NotEmulated", "message": text}, 400)
        body = (
            f"<ErrorResponse><Error><Code>NotEmulated</Code><Message>{escape(text)}</Message></Error></ErrorResponse>"
        )
        return Response(body, 400, media_type="application/xml")

    async def _perform(self, service: Service, operation: str, call: ServiceCall, fault: Fault | None) -> Answer:
        try:
            match fault:
                case Throttle():
                    raise service.throttle()
                case Error(code, message, status):
                    raise ServiceError(code, message, status)
                case Slow(seconds):
                    await asyncio.sleep(seconds)
                case _:
                    pass
            partial = fault if isinstance(fault, Partial) else None
            return await run_in_threadpool(service.answer, operation, call, partial)
        except ServiceError as refusal:
            return service.refuse(refusal)


class Cuts:
    """Cuts connections without answering, which an application alone cannot do."""

    def __init__(self) -> None:
        self._transports: dict[Any, asyncio.Transport] = {}

    def track(self, config: uvicorn.Config) -> uvicorn.Config:
        """Track the connections of a server with this configuration, and return the configuration."""
        transports = self._transports

        class Tracked(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self._port = transport.get_extra_info("peername")[1]
                transports[self._port] = transport
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                transports.pop(self._port, None)
                super().connection_lost(exc)

        config.load()
        config.http_protocol_class = type("Connection", (Tracked, config.http_protocol_class), {})
        return config

    def cut(self, request: Request) -> None:
        """Cut the connection of a request. Later answers are discarded."""
        if request.client is not None:
            with contextlib.suppress(KeyError):  # the client has disconnected
                self._transports[request.client.port].abort()
