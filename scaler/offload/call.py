"""Self-contained tasks and results as bytes, for tasks that run without a worker. Pure.

A *call* contains everything that its task needs: function, serializer, code, arguments, and inputs, each as an inline
payload without references to the object storage. A *result* contains the value or exception, resource usage, and
output. Both are an inline payload (see `scaler.serialization`) preceded by a head: magic (8 bytes), format (u32, little
endian), and 4 zeros. The payload's first part is JSON with the writer's versions and all values that are not bytes.

An *executor* runs an agent's tasks as calls to a service. The agent calls its methods from a dedicated thread, one at a
time, so methods may block. Reports may come from any thread, even within a method, in any order, late or repeatedly.
The agent drops reports about unknown calls.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from scaler._version import __version__
from scaler.errors import ProtocolError, RefusedError, ScalerError
from scaler.ids import show
from scaler.net.versions import cloudpickle_version, minor_version, python_version
from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer, parts_of, to_payload

FORMAT = 5
"""Format number, incremented when the meaning of the bytes changes, including payloads."""
_CALL_MAGIC = b"scalcall"
_RESULT_MAGIC = b"scalrslt"
_HEAD = struct.Struct("<8sI4x")
_RESULT_OUTCOMES = frozenset({Outcome.SUCCESS, Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY, Outcome.OBJECT_LOST})
_CALL_VALUES = ("attempt", "name", "profiling", "stream_output", "limit_seconds", "once", "preload")
_RESULT_VALUES = ("outcome", "duration_us", "cpu_us", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a task. All payloads are inline; see `scaler.serialization`."""

    task: bytes
    attempt: int
    function: Buffer
    arguments: Buffer
    inputs: Sequence[Buffer] = ()
    serializer: Buffer = b""
    """The user's serializer; empty: the built-in serializer."""
    retry_on: Buffer = b""
    """Pickled tuple of exception types, pickled predicate that takes an exception, or empty."""
    name: str = ""
    profiling: bool = False
    stream_output: bool = False
    limit_seconds: float = 0.0
    """Seconds after which the agent kills the call; 0: no limit."""
    once: bool = False
    """Whether the task may run at most once, so that a started call must never be repeated."""
    preload: str = ""
    """Hook to call once in each process, before its first task: module.path:function(literals)."""
    code: Buffer = b""
    """Archive of the client's uploaded modules; may be empty."""

    @property
    def key(self) -> tuple[bytes, int]:
        return self.task, self.attempt

    @property
    def payloads(self) -> tuple[Buffer, ...]:
        return self.function, self.serializer, self.code, self.arguments, *self.inputs

    def with_payloads(self, payloads: Iterable[Buffer]) -> Call:
        function, serializer, code, arguments, *inputs = payloads
        return replace(self, function=function, serializer=serializer, code=code, arguments=arguments, inputs=inputs)

    @property
    def label(self) -> str:
        """Name for jobs and files, unique during a cluster's lifetime: letters, digits, and hyphens."""
        return f"{show(self.task)}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a call. parts: for SUCCESS, the parts of the value; for EXCEPTION, EXCEPTION_TO_RETRY, and OBJECT_LOST,
    the payload as the only part."""

    outcome: Outcome
    parts: Sequence[Buffer]
    duration_us: int = 0
    cpu_us: int = 0
    """0, like peak_bytes, unless the task is profiled."""
    peak_bytes: int = 0
    stdout: Buffer = b""
    """Empty, like stderr, unless output was requested."""
    stderr: Buffer = b""


def pack_call(call: Call) -> bytes:
    values = {"task": call.task.hex(), **{name: getattr(call, name) for name in _CALL_VALUES}}
    return _pack(_CALL_MAGIC, values, [call.retry_on, *call.payloads])


def unpack_call(data: Buffer) -> Call:
    """Parse a call. Payloads are views. Raises ProtocolError, or RefusedError for incompatible versions."""
    head, blocks = _unpack(_CALL_MAGIC, data, "a call")
    _check_versions(head.pop("versions"), "the call was made by", "the job runs")
    try:
        retry_on, function, serializer, code, arguments, *inputs = blocks
        task = bytes.fromhex(head.pop("task"))
        return Call(task, head.pop("attempt"), function, arguments, inputs, serializer, retry_on, code=code, **head)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a call lacks {error}") from None


def pack_result(result: CallResult) -> bytes:
    values = {name: getattr(result, name) for name in _RESULT_VALUES}
    return _pack(_RESULT_MAGIC, values, [result.stdout, result.stderr, *result.parts])


def unpack_result(data: Buffer) -> CallResult:
    """Parse a result. Parts are views. Raises ProtocolError, or RefusedError for a value with other versions."""
    head, blocks = _unpack(_RESULT_MAGIC, data, "a result")
    versions = head.pop("versions")
    try:
        outcome = head.pop("outcome")
        stdout, stderr, first, *rest = blocks
        if outcome not in _RESULT_OUTCOMES:
            raise ProtocolError(f"a result has the outcome {outcome}, which no job reports")
        for name in _RESULT_VALUES[1:]:
            if type(head[name]) is not int or not 0 <= head[name] < 2**64:
                raise ProtocolError(f"a result has a wrong {name}")
        result = CallResult(Outcome(outcome), [first, *rest], stdout=stdout, stderr=stderr, **head)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a result lacks {error}") from None
    if result.outcome is Outcome.SUCCESS:
        _check_versions(versions, "the result was made by", "its client's worker runs")
    return result


def _pack(magic: bytes, values: Mapping[str, object], blocks: Sequence[Buffer]) -> bytes:
    versions = [python_version(), cloudpickle_version(), __version__]
    return _HEAD.pack(magic, FORMAT) + to_payload([json.dumps({"versions": versions, **values}).encode(), *blocks])


def _unpack(magic: bytes, data: Buffer, what: str) -> tuple[dict[str, Any], list[memoryview]]:
    view = memoryview(data)
    if len(view) < _HEAD.size or view[:8] != magic:
        raise ProtocolError(f"invalid data: expected {what}, which begins with {magic.decode()} (size {len(view)})")
    _, form = _HEAD.unpack_from(view)
    if form != FORMAT:
        raise RefusedError(
            f"{what} has format {form}, and scaler {__version__} here reads format {FORMAT}: "
            "install the same version of scaler where jobs run"
        )
    blocks = parts_of(view[_HEAD.size :])
    try:
        head: dict[str, Any] = json.loads(bytes(blocks.pop(0)))
        head["versions"] = [str(each)[:64] for each in head["versions"]]
    except (LookupError, RecursionError, TypeError, ValueError):
        raise ProtocolError(f"{what} has no head") from None
    return head, blocks


def _check_versions(versions: list[str], maker: str, reader: str) -> None:
    python, cloudpickle, scaler = [*versions, "", "", ""][:3]
    if (python, minor_version(cloudpickle)) != (python_version(), minor_version(cloudpickle_version())):
        raise RefusedError(
            f"{maker} Python {python} with cloudpickle {cloudpickle} (scaler {scaler}), {reader} "
            f"Python {python_version()} with cloudpickle {cloudpickle_version()} (scaler {__version__}): "
            "use the same minor versions everywhere"
        )


# -- executors

CallKey = tuple[bytes, int]


class CallStarted(NamedTuple):
    """A call is running, or may be. Its time limit counts from now, or from its submission to the service."""

    task: bytes
    attempt: int


class CallFinished(NamedTuple):
    """A call finished with a result. data: return value of `scaler.offload.job.run_call`."""

    task: bytes
    attempt: int
    data: bytes | bytearray | memoryview


class CallFailed(NamedTuple):
    """A call ended without a result. text: display text with the reason.

    outcome: PROCESSOR_DIED: the process died, which counts against the task. WORKER_LOST: the task may have run to
    completion, which counts against the task. NOT_STARTED: the service removed the call (lost host, lost session),
    which counts against no task. TIMED_OUT, REJECTED, OBJECT_LOST: as usual.
    """

    task: bytes
    attempt: int
    outcome: Outcome
    text: str


class ExecutorDegraded(NamedTuple):
    """Why calls cannot run: one line of display text, shown until an empty text clears it."""

    text: str


Report = CallStarted | CallFinished | CallFailed | ExecutorDegraded


class ExecutorError(ScalerError):
    """Calls were refused. The agent retries them with backoff, which counts against no task. Equal texts count as the
    same failure. taken: calls that were accepted nevertheless."""

    def __init__(self, text: str, taken: Sequence[CallKey] = ()) -> None:
        super().__init__(text)
        self.taken = tuple(taken)


class Executor(Protocol):
    """Runs calls at a service. Created by a factory `module:factory`, called with the agent's `OffloadConfig`."""

    def start(self, report: Callable[[Report], None]) -> None:
        """Prepare for calls. If it raises a ScalerError, the agent exits with the error's text."""

    def run(self, calls: Sequence[Call]) -> None:
        """Accept a batch of calls. Each call is reported later. Raises ExecutorError."""

    def cancel(self, keys: Sequence[CallKey]) -> None:
        """Cancel calls, and drop later reports. Raises ExecutorError if uncertain; it is shown but not retried."""

    def close(self) -> None:
        """Cancel all remaining calls. Called once, even if `start` failed."""
