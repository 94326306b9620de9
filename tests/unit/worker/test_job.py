"""The remote end of an offloaded task: it behaves like a processor, with its result in one piece."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaler import Client
from scaler.errors import ConfigError, ProtocolError, RefusedError, RemoteTraceback, SerializationError, UsageError
from scaler.offload import call as call_module
from scaler.offload.call import Call, CallResult, pack_call, pack_result, unpack_call, unpack_result
from scaler.offload.job import MAX_LOADED, run_call
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_function, dump_value, load_function, load_value, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.serialization.exceptions import load_exception
from scaler.worker.processor import context

TASK = bytes(range(16))


@pytest.fixture(autouse=True)
def _clients_are_not_refused_afterwards() -> Any:
    yield
    context.refusal = ""


def call_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    return Call(
        task=TASK,
        attempt=1,
        function=to_payload(dump_function(function)),
        arguments=to_payload(dump_arguments(args, kwargs)[0]),
    )


def run(call: Call) -> CallResult:
    return unpack_result(run_call(pack_call(call)))


def test_function_by_name_exchanges_documents_with_other_languages() -> None:
    call = Call(TASK, 1, b"\x05\x06builtins:divmod", b'\x06{"args": [7, 2]}')
    assert run(call).parts == [b"\x06[3,1]"]
    failed = run(replace(call, arguments=b'\x06{"args": [7, 0]}', retry_on=b'\x06["builtins:ZeroDivisionError"]'))
    assert failed.outcome is Outcome.EXCEPTION_TO_RETRY


def run_in_a_process(call: Call) -> CallResult:
    """Run it where sys.stdout is the process's own and not pytest's."""
    program = (
        "import sys; from scaler.offload.job import run_call; data = run_call(sys.stdin.buffer.read()); "
        "sys.stdout.buffer.write(data)"
    )
    ended = subprocess.run([sys.executable, "-c", program], input=pack_call(call), capture_output=True, check=True)
    return unpack_result(ended.stdout)


def value_of(result: CallResult) -> Any:
    assert result.outcome is Outcome.SUCCESS
    return load_value(result.parts)


def error_of(result: CallResult) -> BaseException:
    assert result.outcome is Outcome.EXCEPTION
    return load_exception(result.parts[0])


def test_call_round_trips() -> None:
    call = Call(TASK, 7, b"f", b"aa", (b"", b"1", b"22"), b"s", b"r", "näme", True, True, 1.5, preload="m:f('ü')")
    found = unpack_call(pack_call(call))
    assert (found.task, found.attempt, found.name, found.limit_seconds) == (TASK, 7, "näme", 1.5)
    assert (found.profiling, found.stream_output, found.preload) == (True, True, "m:f('ü')")
    assert [bytes(each) for each in (found.function, found.arguments, found.serializer, found.retry_on)] == [
        b"f", b"aa", b"s", b"r",
    ]  # fmt: skip
    assert [bytes(each) for each in found.inputs] == [b"", b"1", b"22"]


def test_large_arrays_return_aligned_and_complete() -> None:
    result = run(call_of(lambda: np.arange(100_000)))
    assert len(result.parts) > 1
    assert value_of(result).sum() == sum(range(100_000))


def test_task_exception_has_the_traceback_from_user_code_on() -> None:
    def fails() -> None:
        raise KeyError("x")

    error = error_of(run(call_of(fails)))
    assert isinstance(error, KeyError)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fails" in error.__cause__.text
    assert "run_call" not in error.__cause__.text


def test_unpicklable_result_raises_a_clear_error() -> None:
    error = error_of(run(call_of(threading.Lock)))
    assert isinstance(error, SerializationError)


def test_serializer_serves_function_arguments_and_result() -> None:
    class Hex:
        def serialize(self, value: Any) -> bytes:
            import cloudpickle  # noqa: PLC0415

            return cloudpickle.dumps(value).hex().encode()  # type: ignore[no-any-return]

        def deserialize(self, data: bytes) -> Any:
            import cloudpickle  # noqa: PLC0415

            return cloudpickle.loads(bytes.fromhex(data.decode()))

    from scaler.serialization import bind_serializer  # noqa: PLC0415

    serializer = bind_serializer(Hex())
    result = run(
        Call(
            TASK,
            1,
            to_payload(dump_function(lambda a: a * 2, serializer)),
            to_payload(dump_arguments((21,), {}, serializer)[0]),
            serializer=to_payload(dump_value(serializer)),
        )
    )
    assert load_value(result.parts, serializer) == 42


def test_task_output_is_returned_with_the_result_on_request() -> None:
    def writes() -> None:
        print("out")
        print("err", file=sys.stderr)
        os.write(1, b"raw\n")
        subprocess.run(["echo", "child"], check=True)

    result = run_in_a_process(replace(call_of(writes), stream_output=True))
    assert (bytes(result.stdout), bytes(result.stderr)) == (b"out\nraw\nchild\n", b"err\n")
    assert run(call_of(lambda: None)).stdout == b""


def test_task_output_is_always_returned(capsys: pytest.CaptureFixture[str]) -> None:
    def prints() -> None:
        print("out")
        print("err", file=sys.stderr)
        raise ValueError

    result = run(call_of(prints))
    assert (bytes(result.stdout), bytes(result.stderr)) == (b"out\n", b"err\n")
    assert capsys.readouterr() == ("out\n", "err\n")


def test_surviving_child_does_not_delay_the_result() -> None:
    def leaves() -> int:
        return os.posix_spawn("/bin/sleep", ["sleep", "60"], {})

    call = replace(call_of(leaves), stream_output=True)
    pid = value_of(run(call))
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_costs_are_returned_on_request() -> None:
    result = run(replace(call_of(lambda: sum(range(300_000))), profiling=True))
    assert result.cpu_us > 0
    assert result.peak_bytes > 0
    assert result.duration_us > 0
    assert run(call_of(lambda: None)).cpu_us == 0


def test_client_in_a_task_explains_why_it_is_unavailable() -> None:
    def nested() -> None:
        Client()

    error = error_of(run(call_of(nested)))
    assert isinstance(error, UsageError)
    assert "runs as a separate job" in str(error)


def test_preload_hook_runs_once_per_process_and_again_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job_set_up.py").write_text(
        "calls = []\ndef fill(value):\n    calls.append(value)\n    if len(calls) == 1:\n        1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    call = replace(call_of(lambda: importlib.import_module("job_set_up").calls), preload="job_set_up:fill('eu')")
    error = error_of(run(call))
    assert isinstance(error, ConfigError)
    assert str(error) == "preload job_set_up:fill('eu') failed: ZeroDivisionError: division by zero"
    assert value_of(run(call)) == ["eu", "eu"]
    assert value_of(run(call)) == ["eu", "eu"]


def test_calls_do_not_see_what_earlier_calls_changed() -> None:
    def count(seen: list[int] = []) -> int:  # noqa: B006 (the state that a call changes)
        seen.append(1)
        return len(seen)

    call = call_of(count)
    assert [value_of(run(call)) for _ in range(2)] == [1, 1]


def test_unchanged_function_stays_loaded_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []

    def load(*arguments: Any) -> Any:
        loads.append(arguments)
        return load_function(*arguments)

    monkeypatch.setattr("scaler.serialization.load_function", load)
    call = call_of(lambda: 5)
    assert [value_of(run(call)) for _ in range(3)] == [5, 5, 5]
    assert len(loads) == 1
    for number in range(MAX_LOADED):
        run(call_of(lambda number=number: number))
    assert value_of(run(call)) == 5
    assert len(loads) == MAX_LOADED + 2


@pytest.mark.parametrize("data", [b"", b"nonsense", b"scalcall" + bytes(4), pack_call(call_of(len, "x"))[:-40]])
def test_invalid_call_returns_an_error_result(data: bytes) -> None:
    error = error_of(unpack_result(run_call(data)))
    assert isinstance(error, ProtocolError | RefusedError)


def test_calls_and_results_of_another_python_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "python_version", lambda: "3.9")
    call = pack_call(call_of(len, "x"))
    result = pack_result(CallResult(Outcome.SUCCESS, dump_value(1)))
    failure = run_call(b"")
    monkeypatch.undo()
    error = error_of(unpack_result(run_call(call)))
    assert isinstance(error, RefusedError)
    assert "the call was made by Python 3.9" in str(error)
    with pytest.raises(RefusedError, match=r"the result was made by Python 3\.9"):
        unpack_result(result)
    assert isinstance(error_of(unpack_result(failure)), ProtocolError)
