"""A task as bytes that can be sent anywhere, and its result: for tasks that run where no worker is. Pure.

A *call* carries all that its task needs: function, serializer, arguments and inputs, each as an inline payload; nothing
in it refers to the object storage. A *result* carries the value, or the exception, and what the task cost and wrote.

Both are blocks behind a head: magic (8 bytes), format, number of blocks, length of the fixed fields (u32 each), the
fixed fields, the length of each block (u64), and then the blocks, each from a multiple of 16 on. Integers are little
endian. The first block names the versions of its maker.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from scaler._version import __version__
from scaler.errors import ProtocolError, RefusedError
from scaler.ids import show
from scaler.net.versions import cloudpickle_version, python_version
from scaler.protocol.messages import Outcome
from scaler.serialization import Buffer

FORMAT = 2
"""Counts up when the bytes change their meaning, those of payloads too."""
_CALL_MAGIC = b"scalcall"
_RESULT_MAGIC = b"scalrslt"
_HEAD = struct.Struct("<8sIII")
_CALL = struct.Struct("<16sHBxd")
"""task id, attempt, flags, time limit in seconds."""
_RESULT = struct.Struct("<BxxxxxxxQQQ")
"""outcome, wall microseconds, CPU microseconds, peak bytes."""
_ALIGNMENT = 16
_PROFILING = 1
_STREAM_OUTPUT = 2
_ONCE = 4
_CALL_BLOCKS = 7
_RESULT_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a task. All payloads are inline ones: see `scaler.serialization.pickling`."""

    task: bytes
    attempt: int
    function: Buffer
    arguments: Buffer
    inputs: Sequence[Buffer] = ()
    serializer: Buffer = b""
    """Empty: the built-in one."""
    retry_on: Buffer = b""
    """Pickled tuple of exception types, or empty."""
    name: str = ""
    """What people see: the function's name."""
    profiling: bool = False
    stream_output: bool = False
    limit_seconds: float = 0.0
    """The agent ends what runs for longer; 0: no limit."""
    once: bool = False
    """It may run at most once: what has begun must never be repeated, for whatever reason."""
    preload: str = ""
    """What a process calls before its first task with this hook: module.path:function(literals)."""

    @property
    def key(self) -> tuple[bytes, int]:
        """Return task and attempt: what names this call."""
        return self.task, self.attempt

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
    stdout: Buffer = field(default=b"")
    """Empty, as stderr, when the output was not asked for."""
    stderr: Buffer = field(default=b"")


def pack_call(call: Call) -> bytes:
    """Return the bytes of a call."""
    flags = _PROFILING * call.profiling | _STREAM_OUTPUT * call.stream_output | _ONCE * call.once
    fixed = _CALL.pack(call.task, call.attempt, flags, call.limit_seconds)
    texts = [text.encode("utf-8", "replace") for text in (call.name, call.preload)]
    return _pack(
        _CALL_MAGIC, fixed, [*texts, call.retry_on, call.function, call.serializer, call.arguments, *call.inputs]
    )


def unpack_call(data: Buffer) -> Call:
    """Return the call; its payloads are views into the data.

    Raises ProtocolError when the data is no call, RefusedError when it was made by versions that do not fit these.
    """
    fixed, versions, blocks = _unpack(_CALL_MAGIC, _CALL.size, _CALL_BLOCKS, data, "a call")
    _check_versions(versions, "the call was made by", "the job runs")
    task, attempt, flags, limit_seconds = _CALL.unpack(fixed)
    name, preload, retry_on, function, serializer, arguments, *inputs = blocks
    return Call(
        task=task,
        attempt=attempt,
        function=function,
        arguments=arguments,
        inputs=inputs,
        serializer=serializer,
        retry_on=retry_on,
        name=bytes(name).decode("utf-8", "replace"),
        profiling=bool(flags & _PROFILING),
        stream_output=bool(flags & _STREAM_OUTPUT),
        limit_seconds=limit_seconds,
        once=bool(flags & _ONCE),
        preload=bytes(preload).decode("utf-8", "replace"),
    )


def pack_result(result: CallResult) -> bytes:
    """Return the bytes of a result."""
    fixed = _RESULT.pack(result.outcome, result.duration_us, result.cpu_us, result.peak_bytes)
    return _pack(_RESULT_MAGIC, fixed, [result.stdout, result.stderr, *result.parts])


def unpack_result(data: Buffer) -> CallResult:
    """Return the result; its parts are views into the data.

    Raises ProtocolError when the data is no result, RefusedError when it holds a value that was made by versions which
    do not fit these; exceptions can be read by all.
    """
    fixed, versions, blocks = _unpack(_RESULT_MAGIC, _RESULT.size, _RESULT_BLOCKS, data, "a result")
    code, duration_us, cpu_us, peak_bytes = _RESULT.unpack(fixed)
    stdout, stderr, *parts = blocks
    if code not in _RESULT_OUTCOMES:
        raise ProtocolError(f"a result has the outcome {code}, which no job reports")
    outcome = Outcome(code)
    if outcome is Outcome.SUCCESS:
        _check_versions(versions, "the result was made by", "its client's worker runs")
    if not parts:
        raise ProtocolError("a result has no parts")
    return CallResult(outcome, parts, duration_us, cpu_us, peak_bytes, stdout, stderr)


_RESULT_OUTCOMES = frozenset({Outcome.SUCCESS, Outcome.EXCEPTION, Outcome.EXCEPTION_TO_RETRY, Outcome.OBJECT_LOST})


def _pack(magic: bytes, fixed: bytes, contents: Sequence[Buffer]) -> bytes:
    versions = " ".join((python_version(), cloudpickle_version(), __version__)).encode()
    blocks = [versions, *contents]
    head = b"".join(
        (
            _HEAD.pack(magic, FORMAT, len(blocks), len(fixed)),
            fixed,
            struct.pack(f"<{len(blocks)}Q", *map(len, blocks)),
        )
    )
    pieces: list[Buffer] = [head, bytes(-len(head) % _ALIGNMENT)]
    for block in blocks:
        pieces.append(block)
        pieces.append(bytes(-len(block) % _ALIGNMENT))
    return b"".join(pieces)


def _unpack(
    magic: bytes, fixed_size: int, least: int, data: Buffer, what: str
) -> tuple[memoryview, str, list[memoryview]]:
    """Return the fixed fields, the versions of the maker, and the other blocks."""
    view = memoryview(data)
    if len(view) < _HEAD.size or view[:8] != magic:
        raise ProtocolError(f"{len(view)} bytes that should be {what} are not: they do not begin with {magic.decode()}")
    _, form, count, size = _HEAD.unpack_from(view)
    if form != FORMAT:
        raise RefusedError(
            f"{what} has format {form}, and scaler {__version__} here reads format {FORMAT}: "
            "install the same version of scaler where jobs run"
        )
    offset = _HEAD.size + size + 8 * count
    if size != fixed_size or count < least or offset > len(view):
        raise ProtocolError(f"{what} ends within its head")
    sizes = struct.unpack_from(f"<{count}Q", view, _HEAD.size + size)
    blocks = []
    for length in sizes:
        offset += -offset % _ALIGNMENT
        if offset + length > len(view):
            raise ProtocolError(f"{what} of {len(view)} bytes says that a block ends at {offset + length}")
        blocks.append(view[offset : offset + length])
        offset += length
    return view[_HEAD.size : _HEAD.size + size], bytes(blocks[0]).decode("utf-8", "replace"), blocks[1:]


def _check_versions(text: str, maker: str, reader: str) -> None:
    """Have maker and reader agree in the minor versions of Python and cloudpickle. Raises RefusedError."""
    python, cloudpickle, scaler = [*text.split(" "), "", "", ""][:3]
    if (python, _minor(cloudpickle)) != (python_version(), _minor(cloudpickle_version())):
        raise RefusedError(
            f"{maker} Python {python[:64]} with cloudpickle {cloudpickle[:64]} (scaler {scaler[:64]}), {reader} "
            f"Python {python_version()} with cloudpickle {cloudpickle_version()} (scaler {__version__}): "
            "use the same minor versions everywhere"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
