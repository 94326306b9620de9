"""A task as bytes that can be sent anywhere, and its result: for tasks that run where no worker is. Pure.

A *call* carries all that its task needs: function, serializer, code, arguments and inputs, each as an inline payload;
nothing in it refers to the object storage. A *result* carries the value, or the exception, and what the task cost and
wrote.

Both are an inline payload (see `scaler.serialization`) behind a head: magic (8 bytes), format (u32, little endian) and
4 zeros. Its first part is a JSON text with the versions of its maker and all values that are no bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaler._version import __version__
from scaler.errors import ProtocolError, RefusedError
from scaler.ids import show
from scaler.net.versions import cloudpickle_version, minor_version, python_version
from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer, parts_of, to_payload

FORMAT = 5
"""Counts up when the bytes change their meaning, those of payloads too."""
_CALL_MAGIC = b"scalcall"
_RESULT_MAGIC = b"scalrslt"
_HEAD = struct.Struct("<8sI4x")
_RESULT_OUTCOMES = frozenset({Outcome.SUCCESS, Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY, Outcome.OBJECT_LOST})
_CALL_VALUES = ("attempt", "name", "profiling", "stream_output", "limit_seconds", "once", "preload")
_RESULT_VALUES = ("outcome", "duration_us", "cpu_us", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a task. All payloads are inline ones: see `scaler.serialization`."""

    task: bytes
    attempt: int
    function: Buffer
    arguments: Buffer
    inputs: Sequence[Buffer] = ()
    serializer: Buffer = b""
    """Empty: the built-in one."""
    retry_on: Buffer = b""
    """Pickled tuple of exception types, pickled predicate of an exception, or empty."""
    name: str = ""
    profiling: bool = False
    stream_output: bool = False
    limit_seconds: float = 0.0
    """The agent ends what runs for longer; 0: no limit."""
    once: bool = False
    """It may run at most once: what has begun must never be repeated, for whatever reason."""
    preload: str = ""
    """What a process calls before its first task with this hook: module.path:function(literals)."""
    code: Buffer = b""
    """The archive of the client's uploaded modules; empty: there are none."""

    @property
    def key(self) -> tuple[bytes, int]:
        """Return task and attempt: what names this call."""
        return self.task, self.attempt

    @property
    def payloads(self) -> tuple[Buffer, ...]:
        return self.function, self.serializer, self.code, self.arguments, *self.inputs

    def with_payloads(self, payloads: Iterable[Buffer]) -> Call:
        """Return the call with other `payloads`, in the same order."""
        function, serializer, code, arguments, *inputs = payloads
        return replace(self, function=function, serializer=serializer, code=code, arguments=arguments, inputs=inputs)

    @property
    def label(self) -> str:
        """Return a name for jobs and files that is unique for the life of a cluster: letters, digits and hyphens."""
        return f"{show(self.task)}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a call ended: SUCCESS with the parts of the value; EXCEPTION, EXCEPTION_TO_RETRY or OBJECT_LOST with their
    payload as the only part."""

    outcome: Outcome
    parts: Sequence[Buffer]
    duration_us: int = 0
    cpu_us: int = 0
    """0, as peak_bytes, when the task was not to be profiled."""
    peak_bytes: int = 0
    stdout: Buffer = b""
    """Empty, as stderr, when the output was not asked for."""
    stderr: Buffer = b""


def pack_call(call: Call) -> bytes:
    values = {"task": call.task.hex(), **{name: getattr(call, name) for name in _CALL_VALUES}}
    return _pack(_CALL_MAGIC, values, [call.retry_on, *call.payloads])


def unpack_call(data: Buffer) -> Call:
    """Return the call; payloads are views into the data. Raises ProtocolError, or RefusedError for other versions."""
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
    """Return the result, as views into the data. Raises ProtocolError, or RefusedError for values of other versions."""
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
    """Return the values of the head, and the blocks."""
    view = memoryview(data)
    if len(view) < _HEAD.size or view[:8] != magic:
        raise ProtocolError(f"what should be {what} does not begin with {magic.decode()} (size {len(view)})")
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
    """Have maker and reader agree in the minor versions of Python and cloudpickle. Raises RefusedError."""
    python, cloudpickle, scaler = [*versions, "", "", ""][:3]
    if (python, minor_version(cloudpickle)) != (python_version(), minor_version(cloudpickle_version())):
        raise RefusedError(
            f"{maker} Python {python} with cloudpickle {cloudpickle} (scaler {scaler}), {reader} "
            f"Python {python_version()} with cloudpickle {cloudpickle_version()} (scaler {__version__}): "
            "use the same minor versions everywhere"
        )
