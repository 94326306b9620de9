"""The emulator's ECS: clients and containers around `EcsCore`."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid

from scaler.testing.aws.containers import Container, StartError
from scaler.testing.aws.ecs.core import EcsCore
from scaler.testing.aws.ecs.rules import EcsRates, EcsTimes, throttled
from scaler.testing.aws.ecs.run import container_command, container_environment
from scaler.testing.aws.ecs.task import Command, KillTask, StartTask, TerminateTask, metadata
from scaler.testing.aws.faults import Partial, ServiceError
from scaler.testing.aws.service import Answer, EmulatorContext, ServiceCall, SteppedService

__all__ = ["EcsRates", "EcsTimes", "EmulatedEcs", "TaskMetadata"]

TARGET = "AmazonEC2ContainerServiceV20141113."
METADATA_PATH = "/v4"


class EmulatedEcs(SteppedService):
    """ECS for clients, with methods for tests to control its tasks. Tasks are named by ARN or its last part.

    `times` and `rates` may be changed at any time, with immediate effect.
    """

    name = "ecs"

    def __init__(self, context: EmulatorContext) -> None:
        self._context = context
        self._core = EcsCore(lambda name: context.arn("ecs", name), lambda: uuid.uuid4().hex, EcsTimes(), EcsRates())
        self.times: EcsTimes = self._core.times
        self.rates: EcsRates = self._core.rates
        self._containers: dict[str, Container] = {}
        self._reasons: dict[str, str] = {}
        self._ended: list[str] = []
        super().__init__("ecs")

    def name_of(self, call: ServiceCall) -> str | None:
        target = call.headers.get("x-amz-target", "")
        return target.removeprefix(TARGET) if target.startswith(TARGET) else None

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:
        try:
            request = json.loads(call.body or b"{}")
        except ValueError as error:
            raise ServiceError("SerializationException", str(error)) from error
        if not isinstance(request, dict):
            raise ServiceError("SerializationException", "The request is not a JSON object.")
        with self._changing():
            answer = self._core.call(operation, request, time.time(), partial)
        return _json_answer(200, answer)

    def refuse(self, refusal: ServiceError) -> Answer:
        return _json_answer(refusal.status, {"__type": refusal.code, "message": refusal.message})

    def throttle(self) -> ServiceError:
        return throttled()

    def alive(self) -> list[str]:
        """Return the ARNs of the tasks that are not STOPPED, in start order."""
        with self._changed:
            return list(self._core.alive)

    def running(self) -> list[str]:
        with self._changed:
            return [arn for arn, task in self._core.alive.items() if task.last_status == "RUNNING"]

    def tasks(self) -> list[str]:
        """Return the ARNs of all tasks, including tasks STOPPED within the last hour."""
        with self._changed:
            return [task.arn for task in self._core.tasks()]

    def output(self, task: str) -> str:
        """Return the end of a container's output. Raises LookupError if none has started."""
        with self._changed:
            return self._containers[self._core.find(task).arn].output()

    def spot_notice(self, task: str) -> None:
        """Reclaim a task's capacity: SIGTERM now, SIGKILL after `times.spot_notice`.

        Raises LookupError, and ValueError for a task that is not on FARGATE_SPOT.
        """
        with self._changing():
            self._core.spot_notice(task, time.time())

    def kill_container(self, task: str, number: int = signal.SIGKILL, reason: str = "") -> None:
        """Send a signal to a task's container. reason: shown with the exit code. Raises LookupError."""
        with self._changed:
            arn = self._core.find(task).arn
            container = self._containers[arn]
            self._reasons[arn] = reason
        if number == signal.SIGKILL:
            container.kill()
        else:
            container.send_signal(number)

    def fail_starts(self, times: int, reason: str = "CannotPullContainerError: pull image manifest: not found") -> None:
        """Make the next `times` containers fail to start with this reason."""
        with self._changed:
            self._core.fail_starts(times, reason)

    def metadata(self, task: str, *, of_task: bool) -> Answer:
        """Answer a container's request for its own or its task's metadata."""
        with self._changed:
            try:
                return _json_answer(200, metadata(self._core.find(task), of_task=of_task))
            except LookupError:
                return _json_answer(404, {"code": "NotFound", "message": f"no task {task}"})

    def _states(self) -> list[str]:
        return [f"{task.arn}: {task.last_status}" for task in self._core.tasks()]

    def _step(self, now: float) -> float | None:
        with self._changed:
            ended, self._ended = self._ended, []
            for arn in ended:
                code = self._containers[arn].poll()
                self._core.exited(arn, code if code is not None else 0, self._reasons.pop(arn, ""), now)
            for command in self._core.step(now):
                self._perform(command)
            self._changed.notify_all()
            return self._core.due()

    def _perform(self, command: Command) -> None:
        match command:
            case StartTask(arn):
                self._start(arn)
            case TerminateTask(arn):
                self._containers[arn].terminate()
            case KillTask(arn):
                self._containers[arn].kill()

    def _start(self, arn: str) -> None:
        order = self._core.find(arn).order
        task_id = arn.rpartition("/")[2]
        own = {
            "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE",
            "ECS_CONTAINER_METADATA_URI_V4": f"{self._context.endpoint_url}{METADATA_PATH}/{task_id}-1",
            **container_environment(order),
        }

        def on_exit(_: Container) -> None:
            with self._changing():
                self._ended.append(arn)

        try:
            environment = {**self._context.secrets(order.definition.container), **own}
            container = self._context.containers.start(container_command(order), environment, task_id, on_exit)
        except StartError as error:
            kind = "" if "Error: " in str(error) else "CannotStartContainerError: "
            self._core.start_failed(arn, f"{kind}{error}", time.time())
            return
        self._containers[arn] = container
        self._core.started(arn, time.time())


def _json_answer(status: int, fields: dict[str, object]) -> Answer:
    return Answer(status, json.dumps(fields).encode(), {"Content-Type": "application/x-amz-json-1.1"})


_PATH = re.compile(rf"{METADATA_PATH}/([0-9a-f]+)-1(/task|/taskWithTags|)/?")


class TaskMetadata:
    """The metadata of tasks, for the processes in their containers."""

    name = "metadata"

    def __init__(self, ecs: EmulatedEcs) -> None:
        self._ecs = ecs

    def name_of(self, call: ServiceCall) -> str | None:
        found = _PATH.fullmatch(call.path) if call.method == "GET" else None
        return None if found is None else "GetTaskMetadata" if found[2] else "GetContainerMetadata"

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:  # noqa: ARG002 (as every service)
        found = _PATH.fullmatch(call.path)
        return self._ecs.metadata("" if found is None else found[1], of_task=operation == "GetTaskMetadata")

    def refuse(self, refusal: ServiceError) -> Answer:
        return Answer(refusal.status, refusal.message.encode(), {"Content-Type": "text/plain"})

    def throttle(self) -> ServiceError:
        return ServiceError("TooManyRequests", "Too Many Requests", 429)

    def close(self) -> None:
        pass
